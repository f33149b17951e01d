"""How commands reach workers: the Celery app, and its transport through files."""
