"""A task folder: instruction.md, task.toml, environment/, tests/ and solution/."""

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentrl.core.errors import ItemError
from agentrl.envs.adapters.harbor import settings
from agentrl.envs.adapters.harbor.settings import InvalidSettings, Settings

CONFIG, INSTRUCTION = "task.toml", "instruction.md"
DOCKERFILE, COMPOSE = "environment/Dockerfile", "environment/docker-compose.yaml"
TEST, SOLVE = "tests/test.sh", "solution/solve.sh"
NOT_READ = ("trajectory.json", "tests/.harborignore", "solution/.harborignore")
CANARY = re.compile(r"\s*(<!--.*canary.*-->|#.*canary.*)\s*", re.IGNORECASE)
DEPTH = 2  # folders below the given one in which a task is looked for
EXECUTABLE = 0o100  # permission of a file
TAG = 24  # characters of a hash in an image's name


class TaskError(ItemError):
    """A task folder that is broken, or that cannot run here. `hint` says what to change."""


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """A task that can run here. `digest`: of all its files."""

    name: str
    path: Path
    settings: Settings
    instruction: str
    digest: str

    @property
    def context(self) -> Path:
        """Return the folder with the Dockerfile."""
        return (self.path / DOCKERFILE).parent

    def image(self) -> str:
        """Return the name of the image that is built of the task: a hash of what goes into it."""
        return f"agentrl-harbor:{digest(self.context)[:TAG]}"

    def archive(self, folder: str) -> bytes:
        """Pack the files of a folder; what can be executed there, and every script, still can."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path in files(self.path / folder):
                entry = tarfile.TarInfo(path.relative_to(self.path / folder).as_posix())
                content = path.read_bytes()
                runs = path.suffix == ".sh" or path.stat().st_mode & EXECUTABLE
                entry.size, entry.mode = len(content), 0o755 if runs else 0o644
                archive.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()


def find(root: Path) -> dict[str, Path]:
    """Return the task folders at or below a folder, by their names: paths below it.

    A folder with a task.toml or an instruction.md is meant as a task. Raises ItemError.
    """
    if not root.is_dir():
        raise ItemError(f"harbor:{root}: no such folder", hint="name a folder of task folders")
    if _is_task(root):
        return {root.resolve().name: root}
    found = {path.relative_to(root).as_posix(): path for path in _below(root, DEPTH)}
    if not found:
        raise ItemError(
            f"harbor:{root}: no task folder in it",
            hint=f"a task is a folder with {CONFIG}, {INSTRUCTION}, {DOCKERFILE} and {TEST}",
        )
    return found


def load(name: str, path: Path, *, build: bool) -> TaskFolder:
    """Read a task. `build`: needs a Dockerfile even where it names an image. Raises TaskError."""
    where = f"harbor task {path}"
    try:
        given = settings.read((path / CONFIG).read_text())
        instruction = (path / INSTRUCTION).read_text()
    except FileNotFoundError as error:
        raise TaskError(f"{where}: it has no {Path(error.filename).name}", hint="add it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{where}: {error}", hint="make its files readable, as UTF-8") from error
    except InvalidSettings as error:
        raise TaskError(f"{where}: {CONFIG}: {error}", hint=f"correct {CONFIG}") from error
    if not (path / TEST).is_file():
        raise TaskError(f"{where}: it has no {TEST}", hint="add one that writes the reward")
    image = given.environment.docker_image
    if not (path / DOCKERFILE).is_file() and (build or not image):
        named = f" (it names the image {image})" if image else ""
        hint = f"add one, or name environment.docker_image in {CONFIG}"
        raise TaskError(f"{where}: it has no {DOCKERFILE}{named}", hint=hint)
    lacking = [*settings.unsupported(given)]
    lacking += [each for each in (COMPOSE, *NOT_READ) if (path / each).exists()]
    if lacking:
        raise TaskError(f"{where}: AgentRL does not support {', '.join(lacking)}")
    return TaskFolder(name, path, given, _without_canary(instruction), digest(path))


def files(folder: Path) -> Iterator[Path]:
    """Return its files in order. Raises TaskError for one that a link takes out of the task."""
    root = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if not path.resolve().is_relative_to(root):
            raise TaskError(
                f"harbor task: {path} is a link to a place outside {folder}",
                hint="replace it by a copy",
            )
        if path.is_file():
            yield path


def digest(folder: Path) -> str:
    """Hash names, contents and permissions to execute of a folder's files."""
    found = hashlib.sha256()
    for path in files(folder):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        executable = path.stat().st_mode & EXECUTABLE
        found.update(f"{path.relative_to(folder).as_posix()}\0{executable}\0{content}\n".encode())
    return found.hexdigest()


def _is_task(folder: Path) -> bool:
    return (folder / CONFIG).exists() or (folder / INSTRUCTION).exists()


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.name.startswith("."):
            continue
        if _is_task(path):
            yield path
        elif depth > 1:
            yield from _below(path, depth - 1)


def _without_canary(text: str) -> str:
    """Drop the leading lines that only mark a benchmark's data, and the empty ones after them."""
    lines = text.split("\n")
    while lines and CANARY.fullmatch(lines[0]):
        del lines[0]
    while lines and not lines[0].strip():
        del lines[0]
    return "\n".join(lines)
