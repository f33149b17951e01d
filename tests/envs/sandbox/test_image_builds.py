"""A build whose cached layers are deleted while it uses them. The engine is a fake."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.sandbox.images import Images
from agentrl.envs.sandbox.program import ImageBuild

LOST = "failed to get digest sha256:58: open /imagedb/58: no such file or directory"


class Builder:
    """A Docker API without images. `errors`: what the builds end with, in order; then none."""

    def __init__(self, *errors: str) -> None:
        self._errors = list(errors)
        self.uncached: list[bool] = []

    def inspect_image(self, image: str) -> None:
        raise docker.errors.ImageNotFound(image)

    def build(self, **options: Any) -> Iterator[dict[str, str]]:
        self.uncached.append(options["nocache"])
        said = {"error": self._errors.pop(0)} if self._errors else {"stream": "built"}
        return (each for each in [said])


def built(api: Any) -> list[bool]:
    Images(api, "fake").provide("count:1", ImageBuild(Path("task/environment")))
    return list(api.uncached)


def test_a_build_that_lost_its_cached_layers_is_repeated_without_the_cache() -> None:
    assert built(Builder()) == [False]
    assert built(Builder(LOST)) == [False, True]


@pytest.mark.parametrize("errors", [("exit code: 7",), (LOST, LOST), (LOST, "exit code: 7")])
def test_any_other_failure_or_a_second_one_of_this_kind_is_raised(errors: tuple[str, ...]) -> None:
    api = Builder(*errors, "never asked for")
    with pytest.raises(EnvironmentFailure, match=f"build of task/environment: {errors[-1][:12]}"):
        built(api)
    assert len(api.uncached) == len(errors)
