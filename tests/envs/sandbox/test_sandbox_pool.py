"""Pools of sandboxes on a real Docker engine: what is lent, kept and removed."""

from collections.abc import Callable
from contextlib import closing

import docker
import pytest
from running import eventually
from sandbox_programs import SMALL, ask, python

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec

Owned = Callable[[], list[str]]


def test_a_sandbox_is_lent_again_until_it_is_worn_out(engine: Engine, sandbox_image: str) -> None:
    with closing(Sandboxes(engine, Spec(sandbox_image, python(), SMALL, reuse=2))) as pool:
        used = []
        for _ in range(3):
            held = pool.lease()
            used.append(held.container)
            pool.release(held, sound=True)
    assert used[0] == used[1] != used[2]


def test_one_that_died_while_idle_is_not_lent(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    with closing(Sandboxes(engine, Spec(sandbox_image, python(), SMALL))) as pool:
        held = pool.lease()
        pool.release(held, sound=True)
        docker_client.containers.get(held.container).kill()
        eventually(lambda: not held.channel.is_quiet(), within_s=60, text=lambda: "too late")
        fresh = pool.lease()
        assert fresh.container != held.container
        assert ask(fresh, "1 + 1") == "2"


def test_spares_are_made_ahead_and_more_than_those_do_not_linger(
    engine: Engine, sandbox_image: str, owned: Owned
) -> None:
    spec = Spec(sandbox_image, python(), SMALL, spares=1, linger_s=0)
    with closing(Sandboxes(engine, spec)) as pool:
        pool.tend()
        assert len(owned()) == 1
        leased = [pool.lease(), pool.lease()]
        for each in leased:
            pool.release(each, sound=True)
        pool.tend()
        assert len(owned()) == 1


def test_a_spare_counts_no_lease_before_it_is_lent(engine: Engine, sandbox_image: str) -> None:
    with closing(Sandboxes(engine, Spec(sandbox_image, python(), SMALL, reuse=1))) as pool:
        pool.tend()
        assert pool.lease().leases == 1


def test_one_that_hangs_while_idle_is_not_lent(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    spec = Spec(sandbox_image, python(), SMALL, trusted_s=0.0)
    with closing(Sandboxes(engine, spec)) as pool:
        held = pool.lease()
        pool.release(held, sound=True)
        docker_client.api.pause(held.container)
        assert held.channel.is_quiet()
        assert pool.lease().container != held.container


def test_closing_removes_idle_and_leased_ones_and_no_more_are_lent(
    engine: Engine, sandbox_image: str, owned: Owned
) -> None:
    pool = Sandboxes(engine, Spec(sandbox_image, python(), SMALL))
    held, idle = pool.lease(), pool.lease()
    pool.release(idle, sound=True)
    pool.close()
    with pytest.raises(EnvironmentFailure):
        ask(held, "1 + 1")
    with pytest.raises(EnvironmentFailure, match="closed"):
        pool.lease()
    eventually(lambda: not owned(), within_s=60, text=lambda: "too late")
