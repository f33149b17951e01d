"""The images of a Docker engine: finds them, and builds those that come as a folder."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import docker
import docker.errors

from agentrl.core.errors import ConfigError, EnvironmentFailure
from agentrl.core.logging import get_logger
from agentrl.envs.sandbox.engine_errors import engine_errors
from agentrl.envs.sandbox.program import ImageBuild

OURS = {"agentrl-sandbox": "sandbox", "agentrl-os": "os"}  # image → its file in deploy/images
BUILT = "agentrl.built"  # label of the images that are built here
KEPT_LINES = 5  # of a build's output, to tell why it failed
CACHE_LOST = ("failed to get digest", "layer does not exist")  # deleted while a build used it

log = get_logger()


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """What an image sets for its processes. `folder`: their working directory; empty: none.

    `command`: its ENTRYPOINT and CMD.
    """

    env: Mapping[str, str]
    folder: str
    command: tuple[str, ...] = ()


class _CacheLost(EnvironmentFailure):
    """Cached layers of an image were deleted while a build used them."""


class Images:
    """Thread-safe. `url`: the engine's address, for errors."""

    def __init__(self, api: docker.APIClient, url: str) -> None:
        self._api, self._url = api, url

    def require(self, image: str) -> None:
        """Raise ConfigError if the engine lacks the image."""
        try:
            self._api.inspect_image(image)
        except docker.errors.ImageNotFound as error:
            raise ConfigError(
                f"the Docker engine at {self._url} has no image {image}",
                hint=_image_hint(image),
            ) from error

    def settings(self, image: str) -> ImageSettings:
        """Return what the image sets. Raises EnvironmentFailure."""
        with engine_errors("inspect image"):
            found: Mapping[str, Any] = self._api.inspect_image(image)["Config"]
        pairs = (each.partition("=") for each in found.get("Env") or ())
        env = {name: value for name, _, value in pairs}
        command = (*(found.get("Entrypoint") or ()), *(found.get("Cmd") or ()))
        return ImageSettings(env, found.get("WorkingDir") or "", command)

    def provide(self, image: str, build: ImageBuild) -> None:
        """Build an image unless the engine has it; once more if its cached layers are deleted.

        Raises EnvironmentFailure with the last lines of the build's output.
        """
        with engine_errors("inspect image"):
            try:
                self._api.inspect_image(image)
            except docker.errors.ImageNotFound:
                pass
            else:
                return
        if build.folder is None:
            raise EnvironmentFailure(
                f"the Docker engine at {self._url} has no image {image}",
                hint=f"docker pull {image}",
            )
        log.info("Image build started", image=image, folder=str(build.folder))
        began = time.monotonic()
        deadline = began + build.timeout_s
        try:
            self._build(image, build, deadline)
        except _CacheLost as error:
            log.warning("Image build repeated without the cache", image=image, error=str(error))
            self._build(image, build, deadline, cached=False)
        seconds = round(time.monotonic() - began, 1)
        log.info("Image built", image=image, seconds=seconds)

    def _build(
        self, image: str, build: ImageBuild, deadline: float, *, cached: bool = True
    ) -> None:
        """`deadline`: of time.monotonic. Raises _CacheLost only if `cached`."""
        lines: list[str] = []
        what = f"build of {build.folder}"
        with engine_errors(what):
            events: Iterator[Mapping[str, Any]] = self._api.build(
                path=str(build.folder),
                tag=image,
                labels={BUILT: "true"},
                nocache=not cached,
                rm=True,
                forcerm=True,
                decode=True,
                timeout=build.timeout_s,
            )
            with closing(events):  # type: ignore[type-var]
                for event in events:
                    if "error" in event:
                        error = str(event["error"])
                        is_lost = cached and any(text in error for text in CACHE_LOST)
                        said = " | ".join([*lines[-KEPT_LINES:], error])
                        raise (_CacheLost if is_lost else EnvironmentFailure)(
                            f"Docker engine: {what}: {said}", hint=f"docker build {build.folder}"
                        )
                    lines += str(event.get("stream", "")).strip().splitlines()[-KEPT_LINES:]
                    del lines[:-KEPT_LINES]
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"not done within {build.timeout_s:g} s")


def _image_hint(image: str) -> str:
    """Return how to get an image. A build never uses a name that may belong to somebody else."""
    if file := OURS.get(image.removesuffix(":latest")):
        return f"docker build -t {image} -f deploy/images/{file}.Dockerfile deploy/images"
    return (
        f"docker pull {image}, or build deploy/images/sandbox.Dockerfile (os.Dockerfile for the "
        "task os) under a name of your own, and set that (envs.docker_image, the task's options, "
        "--image, --peer image=)"
    )
