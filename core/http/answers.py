"""Reads what HTTP servers answer, which may be too long or come too slowly."""

import time
from collections.abc import Callable

import urllib3

LARGEST = 64 * 2**20  # bytes of an answer; a sampled token takes some ten
PIECE = 1 << 16  # bytes read at once


class AnswerTooLong(urllib3.exceptions.HTTPError):
    """`start`: what was read of the body."""

    def __init__(self, largest: int, start: bytes) -> None:
        super().__init__(f"the answer has more than {largest} bytes")
        self.start = start


def read_answer(
    response: urllib3.BaseHTTPResponse,
    deadline: float,
    *,
    largest: int = LARGEST,
    clock: Callable[[], float] = time.monotonic,
) -> bytes:
    """Return the body of an answer that was requested with `preload_content=False`.

    `deadline`: of the clock; a time-out of urllib3 starts anew with every byte. Raises urllib3's
    TimeoutError if the body is not whole by then, and AnswerTooLong for more than `largest` bytes.
    """
    body = bytearray()
    try:
        while piece := response.read1(PIECE):
            body += piece
            if len(body) > largest:
                raise AnswerTooLong(largest, bytes(body))
            if clock() > deadline:
                raise urllib3.exceptions.TimeoutError("the answer came too slowly")
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return bytes(body)
