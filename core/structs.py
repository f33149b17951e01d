"""First use of every msgspec Struct, before threads can make it at once.

msgspec completes a Struct's type information at its first decode, without a lock: where several
threads make first use of one Struct at the same time the process may crash (seen with 0.22).
"""

import threading

import msgspec

_prepared: set[type[msgspec.Struct]] = set()
_lock = threading.Lock()


def prepare_structs() -> frozenset[type[msgspec.Struct]]:
    """Complete every Struct that is imported by now; call it before threads begin to decode.

    Returns all that are complete. One that no decoder takes is never decoded, and passed over.
    """
    waiting: list[type[msgspec.Struct]] = [msgspec.Struct]
    with _lock:
        while waiting:
            for each in waiting.pop().__subclasses__():
                waiting.append(each)
                if each not in _prepared:
                    _complete(each)
        return frozenset(_prepared)


def _complete(struct: type[msgspec.Struct]) -> None:
    try:
        msgspec.json.Decoder(struct)
        msgspec.msgpack.Decoder(struct)
    except TypeError:
        return
    _prepared.add(struct)
