"""Task folders, written and opened with their sandboxes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from harbor_tasks import COUNT, Opened, Written

from agentrl.envs.adapters.harbor.task_source import HarborSource
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandboxes, make_sandboxes


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a task's folder, but for files that are None."""

    def write(name: str = "count", image: str = "base", **changed: str | None) -> Path:
        label = f"LABEL test={tmp_path.name}"  # first: no other test deletes a layer of this image
        dockerfile = f"FROM {image}\n{label}\nWORKDIR /app\nCOPY words.txt ."
        found = COUNT | {"environment/Dockerfile": dockerfile} | changed
        for path, text in found.items():
            if text is not None:
                place = tmp_path / "tasks" / name / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
        return tmp_path / "tasks"

    return write


@pytest.fixture
def opened(
    written: Written, engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> Iterator[Opened]:
    """A source of one written task, with its sandboxes. `options`: of the source."""
    pools: list[Sandboxes] = []
    images: set[str] = set()

    def open_one(options: Any = None, name: str = "count", **changed: str | None) -> HarborSource:
        root = written(name, sandbox_image, **changed)
        source = HarborSource("bench", str(root), options or {})
        pools.extend(make_sandboxes(source, engine, ""))
        built = (each for each in source.specs("") if each.build and each.build.folder)
        images.update(each.image for each in built)
        return source

    yield open_one
    for pool in pools:
        pool.close()
    for image in images:
        if docker_client.images.list(image):
            docker_client.api.remove_image(image, force=True)
