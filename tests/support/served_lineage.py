"""A run whose checkpoints a test publishes, and a policy server that follows them."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3
from checkpoint_rows import register
from running import eventually
from sqlalchemy import select

from agentrl.broker.api import Broker
from agentrl.checkpoints import manifest
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.core.types import RunState
from agentrl.db.models.processes import PolicyServer as ServerRow
from agentrl.db.models.processes import Serving
from agentrl.db.models.runs import Run
from agentrl.db.registry import checkpoints
from agentrl.db.store import Store, now
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.policy_process import FollowedRun, serve_policy

http = urllib3.PoolManager(retries=False)


class ServedLineage:
    """The run `run` and its checkpoints c0, c1, …, of two models in turn."""

    def __init__(self, home: Path, store: Store, save_model: Callable[[str], Path]) -> None:
        self.home, self.store, self.save_model = home, store, save_model
        with self.store.write() as session:
            session.add(
                Run(run_id="run", name="run", config="", seed=0, state=RunState.RUNNING,
                    created_at=now())
            )  # fmt: skip

    def publish(self, version: int) -> str:
        name = f"c{version}"
        path = self.home / name
        shutil.copytree(self.save_model("ab"[version % 2]), path)
        described = manifest.Manifest(name, version, None, manifest.digests(path))
        manifest.write(path, described)
        register(self.store, name, version, path)
        return name

    def followed_run(self, broker: Broker | None = None) -> FollowedRun:
        return FollowedRun("run", self.store, broker)

    def live(self) -> dict[str, str]:
        """checkpoint_id by track, as samplers see it."""
        with self.store.read() as session:
            return {p.track: p.checkpoint_id for p in checkpoints.live_policies(session, "run")}

    def url(self) -> str:
        with self.store.read() as session:
            return checkpoints.live_policies(session, "run")[0].url

    def await_live(self, expected: dict[str, str]) -> None:
        eventually(lambda: self.live() == expected, within_s=100, text=lambda: str(self.live()))

    def await_server(self) -> None:
        """Wait until a policy server is registered."""

        def is_registered() -> bool:
            with self.store.read() as session:
                return session.scalars(select(ServerRow)).first() is not None

        eventually(is_registered, within_s=100, text=lambda: "no policy server is registered")

    def servings(self) -> list[tuple[str, str, bool]]:
        """Track, checkpoint_id and whether the row is open, in the order of opening."""
        with self.store.read() as session:
            rows = session.scalars(select(Serving).order_by(Serving.serving_id))
            return [(row.track, row.checkpoint_id, row.live_until is None) for row in rows]


def server_config(*tracks: str, **options: Any) -> Config:
    """Return a configuration with one policy server that renews its lease often."""
    server = PolicyServer(name="policy", tracks=list(tracks), beat_s=0.1, **options)
    return Config(tasks={"dbbench": Task()}, policy=[server])


@contextmanager
def policy_server(
    lineage: ServedLineage,
    config: Config,
    *,
    link: Broker | None = None,
    engine: LocalEngine | None = None,
) -> Iterator[None]:
    """Run the policy server of `config` in a thread, which is stopped and joined at the end."""
    make = None if engine is None else lambda *_: engine
    with serve_in_thread(config, lineage.followed_run(link), make):
        yield


@contextmanager
def serve_in_thread(
    config: Config, run: FollowedRun, make: Callable[..., LocalEngine] | None = None
) -> Iterator[None]:
    """Run the first policy server of `config` in a thread, as `agentrl policy` does in a process.

    It is stopped and joined at the end. `make`: makes its engine; None: the configuration does.
    """
    stop = threading.Event()
    thread = threading.Thread(
        target=serve_policy, args=(serving_config(config), config.policy[0], run, stop, make)
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def complete(url: str, model: str, max_tokens: int = 8) -> tuple[int, Any]:
    """Ask for a completion; return the status and the decoded answer."""
    body = {"model": model, "prompt": [1, 2, 3], "max_tokens": max_tokens, "temperature": 0,
            "return_token_ids": True, "logprobs": 1}  # fmt: skip
    answer = http.request("POST", f"{url}/v1/completions", body=json.dumps(body).encode())
    return answer.status, json.loads(answer.data)
