"""One composition root per process of a run, and what they answer about themselves."""
