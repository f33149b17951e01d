"""Print what pyproject.toml asks for, for `pip install` in the Dockerfile.

    python requirements.py pyproject.toml tasks tracing             the package with extras
    python requirements.py pyproject.toml --group dashboard-image   a dependency group alone

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
    file, *named = arguments
    read = tomllib.loads(Path(file).read_text("utf-8"))
    if named[:1] == ["--group"]:
        wanted = [each for group in named[1:] for each in read["dependency-groups"][group]]
    else:
        project = read["project"]
        wanted = [*project["dependencies"], *asked(named, project["optional-dependencies"])]
    print("\n".join(sorted(set(wanted))))


if __name__ == "__main__":
    main(sys.argv[1:])
