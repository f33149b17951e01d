"""Print what pyproject.toml asks for, for `pip install` in the Dockerfile.

    python requirements.py pyproject.toml tasks tracing             the package with extras
    python requirements.py pyproject.toml --group dashboard-image   a dependency group alone
    python requirements.py pyproject.toml --metadata FOLDER         write the package's metadata

The package itself is not installed: its folders are copied, so that a change of code installs
nothing anew. Its metadata, in a folder of PYTHONPATH, tells `agentrl --version` and
`agentrl doctor` its version and what it requires.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

OURS = re.compile(r"agentrl-system\[(.*)\]")


def asked(extras: Sequence[str], known: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The requirements of extras, and of the extras that those name. Raises KeyError."""
    for extra in extras:
        for requirement in known[extra]:
            if ours := OURS.fullmatch(requirement):
                yield from asked(ours.group(1).split(","), known)
            else:
                yield requirement


def metadata(project: Mapping[str, Any]) -> str:
    """What an installed package would say of itself (core metadata, without the description)."""
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {each}" for each in project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {each}; extra == "{extra}"' for each in requirements]
    return "\n".join([*lines, ""])


def write_metadata(project: Mapping[str, Any], folder: Path) -> None:
    """Write it where importlib.metadata finds it, with `folder` in the module search path."""
    name = project["name"].replace("-", "_")
    directory = folder / f"{name}-{project['version']}.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text(metadata(project), "utf-8")


def main(arguments: Sequence[str]) -> None:
    """Print one requirement a line, each once, or write the metadata."""
    file, *named = arguments
    read = tomllib.loads(Path(file).read_text("utf-8"))
    if named[:1] == ["--metadata"]:
        write_metadata(read["project"], Path(named[1]))
        return
    if named[:1] == ["--group"]:
        wanted = [each for group in named[1:] for each in read["dependency-groups"][group]]
    else:
        project = read["project"]
        wanted = [*project["dependencies"], *asked(named, project["optional-dependencies"])]
    print("\n".join(sorted(set(wanted))))


if __name__ == "__main__":
    main(sys.argv[1:])
