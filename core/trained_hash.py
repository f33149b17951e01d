"""The running hash over trained bodies: it ties the weights of a checkpoint to what they learned.

A checkpoint's manifest, its snapshot and its row in the database each carry the hash, so an update
that one of them lost, or that was learned twice, is seen when they are compared.
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
