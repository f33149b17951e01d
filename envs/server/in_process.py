"""Runs tasks in this process, with its own sandboxes if their options ask for them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from agentrl.core.config.sections.tasks import Envs
from agentrl.envs.contract import TaskSource
from agentrl.envs.sandbox.sandbox import is_sandboxed, make_sandboxes


def needs_container(source: TaskSource) -> bool:
    """Return whether its options require sandboxes."""
    return is_sandboxed(source) and bool(source.specs(""))


@contextmanager
def host_sandboxes(source: TaskSource, url: str, image: str) -> Iterator[None]:
    """Provide the source with its sandboxes until the end of the block.

    `url`: the Docker engine's address; empty: DOCKER_HOST. `image`: of the sandboxes; empty: the
    default of `envs.docker_image`. Raises ConfigError.
    """
    if not needs_container(source):
        yield
        return
    from agentrl.envs.sandbox.docker_engine import Engine

    with ExitStack() as undo:
        engine = Engine(source.name, url or None)
        undo.callback(engine.close)
        for pool in make_sandboxes(source, engine, image or Envs().docker_image):
            undo.callback(pool.close)
        yield
