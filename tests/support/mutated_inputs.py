"""Inputs that are nearly right: valid ones with a few bytes, or nodes of their tree, changed."""

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 255, 256, 2**31, -(2**31) - 1, 2**53, 2**63, 2**64 - 1),
    *(-(2**63), 2**70, 0.0, -0.0, 1e308, -1e308, 5e-324, 0.1, float("nan"), float("inf")),
    *("", "x", "\0", "null", "-1", "1e999", "NaN", "../..", "/", "é", "\N{GRINNING FACE}"),
    *("[" * 50, "x" * 300, "{{}}", "%s", "${HOME}", [], {}, [[]], {"": {}}),
)
TOKENS: tuple[bytes, ...] = (
    *(b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b"=", b"\0", b"\n", b"[[", b"'''"),
    *(b'"""', b"#", b"null", b"true", b"NaN", b"Infinity", b"-0", b"1e999", b"9" * 400),
    *(b"\\ud800", b"\\u0000", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc9"),
    *(b"\xc6\xff\xff\xff\xff", b"\x28\xb5\x2f\xfd", b"9" * 5000, b"1979-99-99", b"'"),
)
HOSTILE: tuple[bytes, ...] = (
    *(b"", b"\xff\xfe", b"\0", b"[" * 200_000, b'{"x":' * 100_000, b"x = " + b"[" * 100_000),
    *(
        b"x = " + b"9" * 10_000,
        b'{"x": ' + b"9" * 10_000 + b"}",
        b"x = 1979-99-99",
        b"\xdd" * 50_000,
    ),
)
TEXT = b'": "'  # before a text in JSON
DEEP, LONG = 3000, 60_000  # levels of nesting; bytes of the largest input made here


def mutants(
    seeds: Sequence[Any], encode: Callable[[Any], bytes], count: int, seed: int = 0
) -> Iterator[bytes]:
    """The seeds, what is hostile anywhere, then `count` inputs near the seeds: always the same."""
    draw = random.Random(seed)
    whole = [encode(each) for each in seeds]
    yield from (*whole, *HOSTILE)
    for parts in (each.split(TEXT) for each in whole):
        for place in range(1, len(parts)):  # a text that is none
            yield TEXT.join(parts[:place]) + TEXT + b"\xff" + TEXT.join(parts[place:])
    for number in range(count):
        if number % 2:
            try:
                yield encode(_tree(draw, copy.deepcopy(draw.choice(seeds))))
            except (
                ValueError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
            ):  # it cannot be written
                yield _bytes(draw, draw.choice(whole), whole)
        else:
            yield _bytes(draw, draw.choice(whole), whole)


def as_json(tree: Any) -> bytes:
    """Encode as JSON, including what its readers may meet: NaN, lone surrogates."""
    return json.dumps(tree).encode()


def trees(seeds: Sequence[dict[str, Any]], count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield objects as `mutants` does, not encoded."""
    draw = random.Random(seed)
    yield from copy.deepcopy(list(seeds))
    for _ in range(count):
        tree = _tree(draw, copy.deepcopy(draw.choice(seeds)))
        yield tree if isinstance(tree, dict) else {"content": tree}


def _bytes(draw: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    for _ in range(draw.randint(1, 3)):
        at = draw.randint(0, len(data))
        end = min(len(data), at + draw.choice((1, 1, 2, 4, 16, 200)))
        data = data[:at] + _instead(draw, data[at:end], others) + data[end:]
    return data[:LONG]


def _instead(draw: random.Random, gone: bytes, others: Sequence[bytes]) -> bytes:
    """What stands where `gone` stood."""
    other = draw.choice(others)
    token = draw.choice(TOKENS)
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: token,
        lambda: token + gone,
        lambda: draw.randbytes(len(gone)),
        lambda: gone * draw.choice((2, 2, 30)),
        lambda: bytes(byte ^ (1 << draw.randint(0, 7)) for byte in gone),
        lambda: other[draw.randint(0, len(other)) :][:200],
        lambda: token * (DEEP if draw.random() < 0.02 else 2),
    )
    return draw.choice(kinds)()


def _tree(draw: random.Random, tree: Any) -> Any:
    for _ in range(draw.randint(1, 3)):
        tree = _changed(draw, tree)
    return tree


def _changed(draw: random.Random, tree: Any) -> Any:
    """One node of it is another, gone, doubled, or has a neighbour."""
    inside = isinstance(tree, dict | list) and tree and draw.random() < 0.85
    if not inside:
        return _other(draw, tree)
    key = draw.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    chance = draw.random()
    if chance < 0.7:
        tree[key] = _changed(draw, tree[key])
    elif chance < 0.8:
        del tree[key]
    elif isinstance(tree, dict):
        tree[draw.choice(("", "x", "type", "v", f"{key}s", "\0"))] = copy.deepcopy(tree[key])
    else:
        tree.extend(copy.deepcopy(tree[key]) for _ in range(draw.choice((1, 1, 40))))
    return tree


def _other(draw: random.Random, value: Any) -> Any:
    chance = draw.random()
    if chance < 0.02:
        for _ in range(draw.choice((20, 200))):
            value = [value] if draw.random() < 0.5 else {"x": value}
        return value
    if chance < 0.25:
        return [value]
    if isinstance(value, str) and chance < 0.5:
        at = draw.randint(0, len(value))
        return value[:at] + str(draw.choice(SCALARS)) + value[at:]
    if isinstance(value, int | float) and chance < 0.5:
        return value + draw.choice((-1, 1, 0.5, 2**31, 1e6))
    return copy.deepcopy(draw.choice(SCALARS))
