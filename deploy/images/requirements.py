"""Print what the named extras of pyproject.toml ask for, for `pip install` in the Dockerfile.

    python requirements.py pyproject.toml db dashboard

The package itself is not installed: its folders are copied, so that a change of code installs
nothing anew.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

OURS = re.compile(r"agentrl-system\[(.*)\]")


def asked(extras: Sequence[str], known: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The requirements of extras, and of the extras that those name. Raises KeyError."""
    for extra in extras:
        for requirement in known[extra]:
            if ours := OURS.fullmatch(requirement):
                yield from asked(ours.group(1).split(","), known)
            else:
                yield requirement


def main(arguments: Sequence[str]) -> None:
    """One requirement a line, each once."""
    project = tomllib.loads(Path(arguments[0]).read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *asked(arguments[1:], project["optional-dependencies"])]
    print("\n".join(sorted(set(wanted))))


if __name__ == "__main__":
    main(sys.argv[1:])
