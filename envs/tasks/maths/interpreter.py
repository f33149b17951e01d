"""Runs in a sandbox, as nobody: executes code in one namespace, which lasts for an episode.

    a line {"number": n, "code": …, "memory_bytes": …} of REQUESTS
        → a line of REPLIES: n, and the last line of the code's error

Before its first request it writes READY.

What the code prints goes to descriptor 1. The code can do anything to this process, to no other.
"""

from __future__ import annotations

import ast
import json
import os
import resource
import sys
import traceback
from typing import Any

REQUESTS, REPLIES = 198, 199  # descriptors; high ones, so that no pipe has their number already
READY = b"ready\n"
NOBODY = 65534
ERROR_LENGTH = 400  # characters
NAMES = "from fractions import Fraction\nfrom math import *\ndel pow"  # what every code knows


def execute(code: str, namespace: dict[str, Any]) -> str:
    """Run code and print the value of its last expression; return its error's last line."""
    try:
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "code", "exec"), namespace)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "code", "eval"), namespace)  # noqa: S307
            if value is not None:
                print(value)
        sys.stdout.flush()
    except BaseException as error:  # also exit() and what inherits from no Exception
        return _last_line(error)
    return ""


def _last_line(error: BaseException) -> str:
    try:
        sys.stdout.flush()
        lines = "".join(traceback.format_exception_only(error)).split("\n")
        return next(line for line in reversed(lines) if line.strip())[:ERROR_LENGTH]
    except BaseException:  # the code's own exception, whose text raises one
        return type(error).__name__


def serve() -> None:
    """Answer every request."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(NAMES, namespace)  # noqa: S102
    mine = os.getpid()
    os.write(REPLIES, READY)
    with os.fdopen(REQUESTS, "rb", closefd=False) as requests:
        for line in requests:
            request = json.loads(line)
            most = request["memory_bytes"]
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            error = execute(request["code"], namespace)
            if os.getpid() != mine:  # a fork that the code left
                os._exit(0)
            os.write(REPLIES, f"{request['number']} {error}\n".encode(errors="replace"))


if __name__ == "__main__":
    serve()
