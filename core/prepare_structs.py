"""Uses every msgspec Struct once before threads start.

msgspec completes the type information of a Struct at its first decode, without a lock. If several
threads decode the same Struct for the first time, the process may crash (seen with 0.22).
"""

import threading

import msgspec

_prepared: set[type[msgspec.Struct]] = set()
_lock = threading.Lock()


def prepare_structs() -> frozenset[type[msgspec.Struct]]:
    """Complete every imported Struct. Call this before threads start to decode.

    Returns the completed Structs. Structs that no decoder accepts are skipped.
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
