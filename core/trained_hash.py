"""The running hash over trained trajectories: it ties weights to their training data.

The manifest, the snapshot and the database row of a checkpoint contain the hash. Comparing them
reveals an update that one of them lost or that was trained twice.
"""

import hashlib
from collections.abc import Iterable

ROOT = ""  # of weights that have learned from no body yet: a run's version 0


def running_hash(previous: str, bodies: Iterable[str]) -> str:
    """Return the hash after one more update: hex SHA-256, 64 characters.

    previous: the hash of the weights that the update began from, or ROOT.
    bodies: the hex SHA-256 of each body that the update learned from, in any order.
    """
    return hashlib.sha256((previous + "".join(sorted(bodies))).encode()).hexdigest()
