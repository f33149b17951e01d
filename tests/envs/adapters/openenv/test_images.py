"""Images with an OpenEnv server, in containers of an env server."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from openenv_servers import IMAGE_SERVER

from agentrl.core.errors import ConfigError, EnvironmentFailure
from agentrl.envs import registry
from agentrl.envs.contract import ToolCall
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import make_sandboxes

pytest.importorskip("websockets", reason="needs pip install 'agentrl-system[openenv]'")


def build(client: docker.DockerClient, tag: str, files: dict[str, Path | bytes]) -> None:
    """Build an image of files: paths of folders, or contents."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for name, given in files.items():
            if isinstance(given, Path):
                archive.add(given, name)
                continue
            entry = tarfile.TarInfo(name)
            entry.size = len(given)
            archive.addfile(entry, io.BytesIO(given))
    context.seek(0)
    for event in client.api.build(
        fileobj=context, custom_context=True, tag=tag, rm=True, decode=True
    ):
        assert "error" not in event, event


@pytest.mark.slow
def test_an_image_is_a_source_whose_containers_serve_an_episode_each(
    openenv_python: Path,
    sandbox_image: str,
    engine: Engine,
    docker_client: docker.DockerClient,
    owned: Callable[[], list[str]],
) -> None:
    (site,) = openenv_python.parent.parent.glob("lib/python3.*/site-packages")
    tag = "agentrl-test:openenv"
    dockerfile = (
        f"FROM {sandbox_image}\nCOPY site /site\nCOPY server.py /srv/\nWORKDIR /srv\n"
        'ENV PYTHONPATH=/site\nCMD ["python3", "server.py"]\n'
    )
    files = {"Dockerfile": dockerfile.encode(), "site": site, "server.py": IMAGE_SERVER.encode()}
    build(docker_client, tag, files)
    source = registry.source("words", {"solved": 0.5}, f"openenv:{tag}")
    (pool,) = make_sandboxes(source, engine, "")
    try:
        items = source.items("train")
        first, second = source.make(items[0]), source.make(items[1])
        assert len(owned()) == 2, "a server of one place each"
        for environment in (first, second):
            assert environment.start().messages[1].content.startswith("A word of ")
            guesses = [[ToolCall("act", {"word": word})] for word in ("apple", "pear")]
            outcomes = [environment.call(guesses[0])]
            if not outcomes[-1].done:
                outcomes.append(environment.call(guesses[1]))
            assert (outcomes[-1].done, outcomes[-1].score) == (True, 1.0)
            environment.close()
        again = source.make(items[2])
        assert len(owned()) == 2
        again.close()
        found = docker_client.api.inspect_container(owned()[0])
        (network,) = found["NetworkSettings"]["Networks"]
        assert docker_client.api.inspect_network(network)["Internal"] is True
    finally:
        pool.close()
        docker_client.api.remove_image(tag, force=True)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("CMD []", "the image has no CMD that starts a server"),
        ('CMD ["nowhere"]', "the image's server: .*No such file.*'nowhere'"),
        (
            """CMD ["python3", "-c", "raise SystemExit('no words')"]""",
            "the image's server: it exited with 1: no words",
        ),
        ('CMD ["sleep", "99"]', "the image's server: nothing listens on port 8000"),
    ],
)
def test_an_image_without_a_server_is_one_error(
    sandbox_image: str,
    engine: Engine,
    docker_client: docker.DockerClient,
    command: str,
    error: str,
) -> None:
    tag = "agentrl-test:no-openenv"
    build(docker_client, tag, {"Dockerfile": f"FROM {sandbox_image}\n{command}\n".encode()})
    source = registry.source("words", {"start_s": 0.5}, f"openenv:{tag}")
    (pool,) = make_sandboxes(source, engine, "")
    try:
        with pytest.raises(EnvironmentFailure, match=error):
            source.make(source.items("test")[0])
    finally:
        pool.close()
        docker_client.api.remove_image(tag, force=True)


def test_an_image_needs_an_env_server_and_tells_its_tasks_in_the_options() -> None:
    source = registry.source("words", {"tasks": {"train": 2, "test": 1}}, "openenv:echo-env")
    assert source.splits == ("train", "test")
    (item,) = source.items("test")
    assert item.content == {"split": "test", "index": 0}
    with pytest.raises(ConfigError, match="the image echo-env needs an env server"):
        source.make(item)
