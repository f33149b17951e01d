"""Classifies disk errors: a full, missing, read-only or failing disk may recover.

Other file errors, such as a denied permission or a name that is too long, need a person.
"""

import errno

TRANSIENT = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EFBIG,  # a limit of a process or a share, which a person lifts as a quota
        errno.EINTR,
        errno.EIO,
        errno.ENFILE,
        errno.ENODEV,
        errno.ENOLCK,
        errno.ENOLINK,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ENXIO,
        errno.EREMOTEIO,
        errno.EROFS,
        errno.ESTALE,
        # of the network below a mounted folder
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.ETIMEDOUT,
    }
)


def is_transient(number: int | None) -> bool:
    """Return whether the operation may succeed later. `number`: the `errno` of an OSError."""
    return number in TRANSIENT
