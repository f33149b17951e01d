"""The run, its database and its message broker."""

from agentrl.core.config.sections.base import Above0, Name, Natural, Positive, Section, Share


class Run(Section, frozen=True):
    """Name, folder and end of the run."""

    name: Name = "run"
    """Name of the run: up to 60 letters, digits, `.`, `_` and `-`; the first is not `.` or `-`."""
    home: str = "runs/run"
    """Folder for logs, checkpoints and the embedded database and queues."""
    checkpoints: str = ""
    """fsspec URL of the checkpoint storage, for machines that share no folder. Empty: a folder
    under `home`."""
    seed: int = 0
    """Seed of the order of items and of sampling."""
    stop_updates: Positive | None = None
    """The run ends at this version of the policy."""
    stop_hours: Above0 | None = None
    """The run ends this long after it was created."""
    stop_success: Share | None = None
    """The run ends when every task reaches this success over the last ten updates. A task without
    groups in them counts by its last `trainer.min_groups` groups."""


class Store(Section, frozen=True):
    """The database."""

    url: str = "embedded"
    """SQLAlchemy URL of the database, or `embedded` for a SQLite file under `run.home`."""


class Broker(Section, frozen=True):
    """The message broker."""

    url: str = "embedded"
    """AMQP URL of RabbitMQ, or `embedded` for a queue file under `run.home`."""
    tasks_url: str = "embedded"
    """URL of the Celery broker, or `embedded` for files under `run.home`."""
    compress_above: Natural = 4096
    """Message bodies above this size in bytes are compressed."""
