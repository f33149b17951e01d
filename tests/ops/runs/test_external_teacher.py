"""An external model that teaches: the real policy server before an API that echoes prompts."""

import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echo_endpoint import EchoScript, logprob
from external_run import external_teacher
from judge_policies import judge_policy
from openai_endpoint import Answer, Endpoint, failure, serve_endpoint
from run_transitions import World

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.errors import PolicyError
from agentrl.core.retry import Retry
from agentrl.db.store import Store
from agentrl.ops.runs.external_teacher import PROBES, ExternalTeacher, ScoringServer
from agentrl.ops.runs.teachers import (
    TeacherPolicies,
    registered_policies,
    resolve_teachers,
    serve_policies,
    with_teachers,
)
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import OPEN, Gates, Hardware, Metrics, TeacherAway
from agentrl.workers.policies.client import PolicyClient

TINY = Path(__file__).parents[3] / "models" / "tiny"


class KeepingLearner:
    """Keeps the batch that it is given; each trajectory's divergence is 0.25."""

    def __init__(self) -> None:
        self.batch: Batch | None = None

    def update(self, batch: Batch, gates: Gates = OPEN) -> Metrics:
        del gates
        self.batch = batch
        return Metrics({}, reverse_kls=[0.25] * batch.lengths.size)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not expected of a learner that only keeps a batch")


@pytest.fixture
def script() -> EchoScript:
    return EchoScript(TINY / "tokenizer.json")


@pytest.fixture
def there(script: EchoScript) -> Iterator[Endpoint]:
    with serve_endpoint(script) as endpoint:
        yield endpoint


def teaching_config(url: str, more: str = "") -> Config:
    tasks = f'model.path = "{TINY}"\ntasks.dbbench = {{}}\ntasks.kg = {{}}'
    teacher = external_teacher(url, f"retries = 0\n{more}")
    return config_loading.loads(f"{tasks}{teacher}weight = 0.5")


def batch() -> Batch:
    """Three trajectories: one of dbbench with two branches, one of kg, one of dbbench."""
    branches = np.array([6, 4, 5, 7])
    count = int(branches.sum())
    mask = np.zeros(count, np.bool_)
    mask[[2, 3, 7, 12, 17, 19]] = True
    zeros = np.zeros(count, np.float32)
    return Batch(
        tokens=np.arange(300, 300 + count),
        loss_mask=mask,
        behaviour=zeros,
        temperature=zeros + 1,
        advantages=zeros,
        fresh=mask,
        shares=zeros,
        lengths=np.array([10, 5, 7]),
        task_ids=np.array([0, 1, 0]),
        tasks=("dbbench", "kg"),
        rewards=np.zeros(3, np.float32),
        successes=np.zeros(3, np.bool_),
        unnormalised=frozenset(),
        branches=branches,
    )


def teach(
    config: Config, policies: TeacherPolicies, sampled: Batch | None = None
) -> tuple[Batch, Metrics]:
    """Update once, as the trainer's loop does; return the batch that the learner was given."""
    own = KeepingLearner()
    learner = with_teachers(own, resolve_teachers(config), TINY, config, Hardware(), policies)
    retry = Retry("teacher", TeacherAway, stop=policies.stop)
    metrics = retry.call(lambda: learner.update(sampled or batch()))
    assert own.batch is not None
    return own.batch, metrics


def serve_and_teach(
    url: str, more: str = "", sampled: Batch | None = None
) -> tuple[Batch, Metrics]:
    config = teaching_config(url, more)
    with serve_policies(config, threading.Event()) as policies:
        return teach(config, policies, sampled)


def require_scored(scored: Batch) -> None:
    own = np.array([2, 3, 7, 17, 19])
    expected = [logprob(299 + place, 300 + place) for place in own.tolist()]
    assert scored.teacher_logprobs[own].tolist() == expected
    assert np.flatnonzero(scored.teacher_weights).tolist() == own.tolist()
    assert set(scored.teacher_weights[own].tolist()) == {0.5}


def test_it_scores_the_branches_of_its_tasks_up_to_their_last_loss_token(there: Endpoint) -> None:
    scored, metrics = serve_and_teach(there.url)
    require_scored(scored)
    prompts = sorted(body["prompt"] for _, body in there.asked)
    assert prompts == [[300, 301, 302, 303], [306, 307], list(range(315, 320))]
    first, second, third = metrics.teacher_scores
    assert second is None
    assert first is not None
    assert third is not None
    assert (first.name, first.checkpoint) == ("elder", "external(critic): big")
    assert first.reverse_kl == 0.25
    scores = np.array([logprob(301, 302), logprob(302, 303), logprob(306, 307)], "<f4")
    assert first.digest == hashlib.sha256(scores.tobytes()).hexdigest()
    assert third.digest != first.digest


def test_it_is_waited_for_while_its_api_fails_and_what_was_scored_is_kept(
    there: Endpoint, script: EchoScript, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = Counter[int]()
    failures = iter([failure(500), None, failure(503), failure(502), None, failure(429)])

    def flaky(body: dict[str, Any]) -> Answer:
        wrong = next(failures, None)
        answered[body["prompt"][0]] += wrong is None
        return script(body) if wrong is None else wrong

    there.script = flaky
    scored, _ = serve_and_teach(there.url, "concurrency = 1")
    require_scored(scored)
    assert answered == {300: 1, 306: 1, 315: 1}
    assert len(there.asked) == 7
    log = capsys.readouterr().out
    assert "Waiting for a service that is unavailable" in log
    assert "service=teacher" in log
    assert 'teacher "elder": policy server' in log
    assert "500" in log, "what the API answered"
    assert "Service is available again" in log


def make_clock() -> Callable[[], float]:
    """Return a clock that goes on by a minute at each reading."""
    return itertools.count(60.0, 60.0).__next__


def tries_until_error(teacher: ExternalTeacher, most: int) -> tuple[int, PolicyError | None]:
    """Ask again and again, as the trainer's loop; return how often, and the error that ends it."""
    for tries in range(1, most + 1):
        try:
            teacher.logprobs(batch())
        except TeacherAway:
            continue
        except PolicyError as error:
            return tries, error
    return most, None


@pytest.mark.parametrize("is_wholly_away", [False, True])
def test_a_sequence_on_which_the_api_always_fails_is_an_error_unless_the_api_is_away(
    there: Endpoint, script: EchoScript, *, is_wholly_away: bool
) -> None:
    """The first call begins to count; every second one, 2 minutes later, asks for other tokens."""
    short = 0  # requests for two tokens

    def fails_on_four(body: dict[str, Any]) -> Answer:
        nonlocal short
        short += len(body["prompt"]) == 2
        is_away = is_wholly_away or short == 3  # for the third
        return failure(500) if is_away or len(body["prompt"]) == 4 else script(body)

    there.script = fails_on_four
    config = teaching_config(there.url)
    with serve_policies(config, threading.Event()) as policies:
        server = ScoringServer(partial(policies.find, "critic"), PolicyClient(), 16, 60.0)
        teacher = ExternalTeacher("elder", server, threading.Event(), make_clock())
        tries, error = tries_until_error(teacher, 100)
    if is_wholly_away:
        assert (tries, error) == (100, None)
        return
    assert tries == 1 + 2 * (3 + PROBES)
    assert error is not None
    assert str(error).startswith('teacher "elder": policy server ')
    assert "; it has failed on these 4 tokens for 30 minutes, in which it answered" in str(error)
    assert "policy.external.timeout_s" in error.hint


def test_an_answer_that_does_not_come_in_time_is_asked_for_again(
    there: Endpoint, script: EchoScript
) -> None:
    gate = threading.Event()

    def slow(body: dict[str, Any]) -> Answer:
        if len(there.asked) == 1:
            gate.wait(60)
        return script(body)

    there.script = slow
    scored, _ = serve_and_teach(there.url, "timeout_s = 0.3")
    gate.set()
    require_scored(scored)
    assert len(there.asked) == 4


def test_an_api_with_another_tokenizer_is_refused_at_once(
    there: Endpoint, script: EchoScript
) -> None:
    def other(body: dict[str, Any]) -> Answer:
        choice = script.choice(body["prompt"])
        choice["logprobs"]["tokens"].reverse()
        return {"choices": [choice]}

    there.script = other
    host = there.url.split("/")[2]
    with pytest.raises(
        PolicyError,
        match=f'teacher "elder": policy server .*: external model at {host}: token 0, .*'
        "; serve a model with the tokenizer of model.path$",
    ):
        serve_and_teach(there.url)
    assert len(there.asked) == 1


def test_equal_sequences_are_scored_once(there: Endpoint) -> None:
    sampled = batch()
    sampled.tokens[15:19] = sampled.tokens[6:10]
    sampled.loss_mask[15:] = False
    sampled.loss_mask[[7, 16]] = True
    scored, _ = serve_and_teach(there.url, sampled=sampled)
    assert sorted(body["prompt"] for _, body in there.asked) == [[300, 301, 302, 303], [306, 307]]
    assert scored.teacher_logprobs[[7, 16]].tolist() == [logprob(306, 307)] * 2


def test_a_trainer_told_to_stop_abandons_requests_that_are_running(
    there: Endpoint, script: EchoScript
) -> None:
    stop, gate, answered = threading.Event(), threading.Event(), threading.Event()

    def slow(body: dict[str, Any]) -> Answer:
        stop.set()
        gate.wait(20)
        answered.set()
        return script(body)

    there.script = slow
    config = teaching_config(there.url)
    with serve_policies(config, stop) as policies:
        with pytest.raises(TeacherAway, match='teacher "elder": the process is told to stop'):
            teach(config, policies)
        assert not answered.is_set()
        gate.set()


def test_a_trainer_told_to_stop_waits_no_longer(there: Endpoint) -> None:
    stop = threading.Event()

    def dead(_: dict[str, Any]) -> Answer:
        stop.set()
        return failure(500)

    there.script = dead
    config = teaching_config(there.url)
    with serve_policies(config, stop) as policies, pytest.raises(TeacherAway):
        teach(config, policies)


def test_in_a_run_it_is_asked_through_the_policy_server_that_is_live(
    store: Store, script: EchoScript, there: Endpoint
) -> None:
    world = World.begin(store)
    config = teaching_config(there.url)
    policies = registered_policies(config, store, world.run_id, threading.Event())
    assert policies.find("critic") is None
    found: list[Batch] = []
    waiting = threading.Thread(target=lambda: found.append(teach(config, policies)[0]))
    waiting.start()
    with judge_policy(store, world.run_id, script) as endpoint:
        waiting.join(60)
    assert not there.asked
    (scored,) = found
    require_scored(scored)
    rows = world.ask("SELECT requests, tokens FROM spendings WHERE name = 'critic'")
    assert rows == [(len(endpoint.asked), 7 * len(endpoint.asked))]
