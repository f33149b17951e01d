"""Reads what HTTP servers answer, which may be too long or come too slowly."""

import time

import urllib3

LARGEST = 64 * 2**20  # bytes of an answer; a sampled token takes some ten
PIECE = 1 << 16  # bytes read at once


def read_answer(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """Return the body of an answer that was requested with `preload_content=False`.

    `deadline`: of `time.monotonic`; a time-out of urllib3 starts anew with every byte. Raises
    urllib3's HTTPError if the body is not whole by then, or exceeds LARGEST bytes.
    """
    body = bytearray()
    try:
        while piece := response.read1(PIECE):
            body += piece
            if len(body) > LARGEST:
                raise urllib3.exceptions.HTTPError(f"the answer has more than {LARGEST} bytes")
            if time.monotonic() > deadline:
                raise urllib3.exceptions.HTTPError("the answer came too slowly")
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return bytes(body)
