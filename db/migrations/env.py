"""Alembic's entry point. Uses the connection that db/admin/migrate.py passes."""

from alembic import context
from sqlalchemy import Connection

from agentrl.db.models.base import Base

connection: Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
