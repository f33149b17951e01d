"""The policy server of an external model: its rows, its face, its end of means."""

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3
from external_run import assert_key_is_kept_nowhere
from openai_endpoint import KEY, Answer, Endpoint, completion, failure, serve_endpoint
from policy_servers import serve
from running import eventually
from served_lineage import serve_in_thread
from sqlalchemy import select, text

from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Worker
from agentrl.core.config.sections.policies import External, Model, PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import StoreError
from agentrl.core.types import CheckpointState, RunState
from agentrl.db.admin import migrate
from agentrl.db.models.processes import PolicyServer as ServerRow
from agentrl.db.models.processes import Serving
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints, external_policies
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.store import Store, now, open_store
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.external.answers import usable_logprobs
from agentrl.serving.external.app import ExternalApp, ExternalModel
from agentrl.serving.external.scoring import TokenTexts
from agentrl.serving.external.upstream import Budget, Upstream, UpstreamUnavailable
from agentrl.serving.policy_process import FollowedRun, serve_policy
from agentrl.serving.scripted import ScriptedEngine, limits_of
from agentrl.serving.served_checkpoints import ServedCheckpoints

ROOT = Path(__file__).parents[3]
http = urllib3.PoolManager(retries=False)
ASKED = {"messages": [{"role": "user", "content": "?"}], "temperature": 0.5}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as opened:
        migrate.upgrade(opened)
        with opened.write() as session:
            session.add(
                Run(run_id="run", name="run", config="", seed=0, state=RunState.RUNNING,
                    created_at=now())
            )  # fmt: skip
        yield opened


@pytest.fixture
def there() -> Iterator[Endpoint]:
    with serve_endpoint(lambda _: completion("hello", ("look", {"thing": "mug"}))) as found:
        yield found


def teacher_config(there: Endpoint, **given: Any) -> Config:
    """A configuration with one policy server, of that endpoint."""
    fields = {"url": there.url, "model": "big", "key_env": "BIG_KEY", "retries": 0}
    server = PolicyServer(
        name="teacher", engine="external", beat_s=0.1, external=External(**(fields | given))
    )
    return Config(
        tasks={"dbbench": Task()},
        policy=[server],
        model=Model(path=str(ROOT / "models" / "tiny")),
        worker=Worker(completion_timeout_s=60.0),
    )


@contextmanager
def teacher(store: Store, there: Endpoint, **given: Any) -> Iterator[None]:
    """The server in a thread, as `agentrl policy` runs it."""
    with serve_in_thread(teacher_config(there, **given), FollowedRun("run", store)):
        yield


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", KEY)


def live(store: Store) -> list[LivePolicy]:
    with store.read() as session:
        return checkpoints.live_policies(session, "run")


def awaited(what: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def looked() -> bool:
        found.append(what())
        return bool(found[-1])

    eventually(looked, within_s=60, text=lambda: str(found[-1]))
    return found[-1]


def lease(store: Store) -> float:
    """Until when its newest server may count as alive."""
    with store.read() as session:
        leases = select(ServerRow.lease_until).order_by(ServerRow.started_at.desc())
        return session.scalars(leases.limit(1)).one()


def await_beat(store: Store) -> None:
    """Until its lease was extended twice: it looked at its budget in between."""
    for _ in range(2):
        before = lease(store)
        awaited(lambda before=before: lease(store) > before)  # type: ignore[misc]


def post(policy: LivePolicy, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    given = json.dumps({"model": policy.checkpoint_id} | body).encode()
    answer = http.request("POST", f"{policy.url}{path}", body=given)
    return answer.status, json.loads(answer.data)


def test_it_registers_a_track_of_its_own_and_speaks_messages(store: Store, there: Endpoint) -> None:
    with teacher(store, there):
        (policy,) = awaited(lambda: live(store))
        assert (policy.track, policy.version, policy.exact) == ("external(teacher)", -1, False)
        status, answer = post(policy, "/v1/chat/completions", ASKED)
        assert status == 200
        message = answer["choices"][0]["message"]
        assert message["content"] == "hello"
        assert message["tool_calls"][0]["function"]["name"] == "look"
        assert post(policy, "/v1/completions", {})[0] == 404
        assert post(policy, "/v1/chat/completions", ASKED | {"model": "other"})[0] == 404
        assert post(policy, "/v1/chat/completions", ASKED | {"more": 1})[0] == 400
        await_beat(store)
        assert live(store)
    assert live(store) == []
    path, body = there.asked[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("big", 512, 0.5)
    with store.read() as session:
        assert external_policies.spending(session, "run", "teacher") == (1, 7)


def test_its_row_is_of_no_lineage_and_is_made_once(store: Store, there: Endpoint) -> None:
    for _ in range(2):
        with teacher(store, there):
            awaited(lambda: live(store))
    with store.read() as session:
        (row,) = session.scalars(select(Checkpoint))
        assert (row.state, row.version) == (CheckpointState.EXTERNAL, -1)
        assert checkpoints.live_checkpoints(session, "run") == []
        assert checkpoints.undeleted_checkpoints(session, "run") == []
        servings = list(session.scalars(select(Serving)))
        assert len(servings) == 2
        assert all(each.live_until is not None for each in servings)


def test_a_budget_that_is_spent_closes_the_row_also_after_a_restart(
    store: Store, there: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    with teacher(store, there, max_requests=1):
        (policy,) = awaited(lambda: live(store))
        assert post(policy, "/v1/chat/completions", ASKED)[0] == 200
        assert post(policy, "/v1/chat/completions", ASKED)[0] == 404
        awaited(lambda: not live(store))
        await_beat(store)
    assert capsys.readouterr().out.count("External model disabled") == 1
    with teacher(store, there, max_requests=1):
        await_beat(store)
        assert live(store) == []
    assert len(there.asked) == 1


def test_a_server_whose_rows_the_database_lost_ends_with_an_error(
    store: Store, there: Endpoint
) -> None:
    """A supervisor starts it again, and it registers anew."""
    with ThreadPoolExecutor(1) as pool:
        run, stop = FollowedRun("run", store), threading.Event()
        config = serving_config(teacher_config(there))
        ended = pool.submit(serve_policy, config, teacher_config(there).policy[0], run, stop)
        awaited(lambda: live(store))
        with store.write() as session:
            session.execute(text("DELETE FROM servings"))
        try:
            with pytest.raises(StoreError, match="lost rows of policy server teacher"):
                ended.result(20)
        finally:
            stop.set()


def test_a_bearer_token_is_demanded_on_every_path(store: Store, there: Endpoint) -> None:
    config = teacher_config(there)
    guarded = msgspec.structs.replace(config.policy[0], token_env="BIG_KEY")
    config = msgspec.structs.replace(config, policy=[guarded])
    with serve_in_thread(config, FollowedRun("run", store)):
        (policy,) = awaited(lambda: live(store))
        for method, path in (("GET", "/health"), ("POST", "/v1/chat/completions")):
            assert http.request(method, f"{policy.url}{path}").status == 401
        headers = {"authorization": f"Bearer {KEY}"}
        assert http.request("GET", f"{policy.url}/health", headers=headers).status == 200


def test_a_refused_key_closes_the_row_and_is_written_nowhere(
    store: Store, there: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there.script = lambda _: failure(401, f"Incorrect API key provided: {KEY}")
    with teacher(store, there):
        (policy,) = awaited(lambda: live(store))
        status, answer = post(policy, "/v1/chat/completions", ASKED)
        assert status == 404
        assert "BIG_KEY" in str(answer)
        awaited(lambda: not live(store))
    there.script = lambda _: failure(500, f"your key is {KEY}")
    with teacher(store, there):
        (policy,) = awaited(lambda: live(store))
        assert post(policy, "/v1/chat/completions", ASKED)[0] == 504
    written = capsys.readouterr()
    assert "External model disabled" in written.out
    assert KEY not in written.out + written.err + str(answer)
    assert_key_is_kept_nowhere(tmp_path)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (failure(400, "too long"), 422),
        ({"choices": []}, 422),
        (failure(500), 504),
        (failure(429), 503),
        (failure(503, Retry_After="1"), 503),
    ],
)
def test_a_request_that_would_be_refused_again_is_told_from_one_that_may_succeed(
    store: Store, there: Endpoint, answer: Answer, status: int
) -> None:
    there.script = lambda _: answer
    with teacher(store, there):
        (policy,) = awaited(lambda: live(store))
        assert post(policy, "/v1/chat/completions", ASKED)[0] == status
        assert [each.track for each in live(store)] == ["external(teacher)"]


def test_a_request_that_waited_for_a_place_too_long_is_not_paid_for(there: Endpoint) -> None:
    given, served, kept = (
        External(url=there.url, model="big"),
        ServedCheckpoints(),
        list[tuple[int, int]](),
    )
    served.serve("external(t)", "t", -1)
    budget = Budget(given, (0, 0), lambda *each: kept.append(each))
    with closing(Upstream(given, KEY, budget, threading.Event())) as upstream:
        app = ExternalApp(ExternalModel(upstream, TokenTexts(Path()), 512, 5.0), served, "", 1)
        body = json.dumps({"model": "t", "messages": []}).encode()
        with pytest.raises(UpstreamUnavailable, match="no time left"):
            app._chat(body, time.monotonic())
        assert (kept, there.asked) == ([], [])
        assert app._chat(body, time.monotonic() + 20)


def test_its_process_ends_while_the_model_is_silent(there: Endpoint) -> None:
    gate = threading.Event()
    there.script = lambda _: completion("late") if gate.wait(60) else failure(500)
    program = f'''
import threading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import External, PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.external.engine import serve_for_evaluation
import urllib3, json
server = PolicyServer(
    name="t", engine="external", external=External(url="{there.url}", model="big", retries=0)
)
with serve_for_evaluation(serving_config(Config(tasks={{"dbbench": Task()}})), server) as policy:
    body = json.dumps({{"model": policy.checkpoint_id, "messages": []}})
    ask = lambda: urllib3.request(
        "POST", policy.url + "/v1/chat/completions", body=body, retries=False
    )
    threading.Thread(target=ask, daemon=True).start()
    input()
'''
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, cwd=ROOT)
    try:
        awaited(lambda: there.asked)
        child.communicate(b"\n", timeout=50)  # below a try's 60 s
        assert child.returncode == 0
    finally:
        child.kill()
        gate.set()


def tokens(ids: list[int], logprobs: Any) -> Answer:
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"total_tokens": 5}}


SAMPLE = {"prompt": [1, 2], "max_tokens": 4, "return_token_ids": True, "logprobs": 0, "seed": 3}


@pytest.mark.parametrize(
    ("logprobs", "masked"),
    [
        ([-0.5, -1.5], False),
        ([-0.5], True),
        ([-0.5, 0.1], True),
        ([-0.5, None], True),
        ([-0.5, float("inf")], True),
        (None, True),
    ],
)
def test_tokens_of_our_vocabulary_train_where_their_log_probabilities_are_usable(
    store: Store, there: Endpoint, logprobs: Any, masked: bool
) -> None:
    there.script = lambda _: tokens([3, 4], logprobs)
    with teacher(store, there, tokens=True):
        (policy,) = awaited(lambda: live(store))
        assert policy.exact
        status, answer = post(policy, "/v1/completions", SAMPLE)
    if logprobs and logprobs[-1] == float("inf"):  # no JSON has it
        assert status == 422
        return
    assert status == 200
    choice = answer["choices"][0]
    assert choice["token_ids"] == [3, 4]
    assert choice["masked"] is masked
    assert choice["logprobs"]["token_logprobs"] == ([0.0, 0.0] if masked else logprobs)
    asked = there.asked[0][1]
    assert asked | SAMPLE | {"model": "big"} == asked


@pytest.mark.parametrize("ids", [[], [1, 2, 3, 4, 5], [-1], [99999], None, ["a"]])
def test_token_ids_that_are_not_ours_are_no_answer(store: Store, there: Endpoint, ids: Any) -> None:
    there.script = lambda _: tokens(ids, [-1.0])
    with teacher(store, there, tokens=True):
        (policy,) = awaited(lambda: live(store))
        assert post(policy, "/v1/completions", SAMPLE)[0] == 422


def test_log_probabilities_of_many_shapes_are_usable_or_not() -> None:
    assert usable_logprobs({"token_logprobs": [0, -1.0]}, 2) == [0.0, -1.0]
    for given in (None, [], {}, {"token_logprobs": "ab"}, {"token_logprobs": [True, -1.0]}):
        assert usable_logprobs(given, 2) is None


def test_another_policy_server_of_ours_can_be_the_teacher(store: Store, there: Endpoint) -> None:
    limits = limits_of(ROOT / "models" / "tiny")
    engine = ScriptedEngine(limits=limits)
    with serve(engine, {"big": ("current", Path())}) as server:
        there.url = f"{server.url}/v1"
        with teacher(store, there, tokens=True):
            (policy,) = awaited(lambda: live(store))
            status, answer = post(policy, "/v1/completions", SAMPLE | {"stop_token_ids": [7]})
    assert status == 200
    choice = answer["choices"][0]
    assert choice["masked"] is False
    uniform = [-math.log(limits.vocabulary)] * len(choice["token_ids"])
    assert choice["logprobs"]["token_logprobs"] == uniform


def test_a_run_is_deleted_with_what_it_spent(store: Store, there: Endpoint) -> None:
    from agentrl.db.transitions import lifecycle

    with teacher(store, there):
        (policy,) = awaited(lambda: live(store))
        post(policy, "/v1/chat/completions", ASKED)
    with store.write() as session:
        lifecycle.delete_run_rows(session, "run")
    with store.read() as session:
        for table in ("spendings", "checkpoints", "servings", "runs"):
            assert session.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 0  # noqa: S608
        assert session.scalars(select(ServerRow)).all() == []
