import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path

import policy_servers
import pytest
from policy_servers import ScriptedEnvironment, ScriptedSource, serve, won

from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch, Sampling
from agentrl.core.config.sections.policies import Model, PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError, PolicyError
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs.contract import Environment, Item, Message, Observation
from agentrl.ops.configuration import configs
from agentrl.ops.evaluation.evaluate import EpisodeScore, Evaluator, Plan, work_of
from agentrl.ops.evaluation.summary import summarise
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.scripted import ScriptedEngine, limits_of
from agentrl.workers.attempt_errors import EpisodeStopped

TINY = Path(__file__).parents[3] / "models" / "tiny"
PLAN = Plan("dbbench", "test", 1.0, items=2)


@pytest.fixture
def policy() -> Iterator[LivePolicy]:
    with serve(ScriptedEngine(limits=limits_of(TINY)), {"c": ("current", Path())}) as server:
        yield LivePolicy("s", server.url, "current", "c", 0)


def _played(evaluator: Evaluator) -> list[EpisodeScore | None]:
    work = work_of(PLAN, ScriptedSource(lambda _item: ScriptedEnvironment([], won())))
    return [played for ended in evaluator.play(work) for _, played in ended]


def test_a_measurement_takes_items_from_the_whole_split_and_more_of_them_contain_fewer() -> None:
    source = ScriptedSource(lambda _item: ScriptedEnvironment([], won()))
    source.items = lambda _split: [Item("dbbench", str(n), {}) for n in range(100)]  # type: ignore[method-assign]
    few, more = (
        [int(work.item.item_id) for work in work_of(Plan("dbbench", "test", 0.0, count), source)]
        for count in (10, 20)
    )
    assert more[:10] == few
    assert max(few) > 50


def _measured(policy: LivePolicy, failures: int) -> tuple[int, int, int]:
    """(episodes, failed, environments made) where each item's first `failures` attempts fail."""
    made: dict[str, int] = {}

    def make(item: Item) -> Environment:
        made[item.item_id] = made.get(item.item_id, 0) + 1
        fails = made[item.item_id] <= failures
        return ScriptedEnvironment([], EnvironmentFailure("broke") if fails else won())

    config = Config(
        tasks={"dbbench": Task()},
        model=Model(path=str(TINY)),
        dispatch=Dispatch(max_attempts=3),
    )
    with closing(Evaluator(config, policy, {"dbbench": ScriptedSource(make)})) as evaluator:
        measured = summarise(PLAN, _played(evaluator))
    return measured.episodes, measured.failed, sum(made.values())


def test_an_attempt_that_breaks_is_made_again_in_a_fresh_environment(policy: LivePolicy) -> None:
    assert _measured(policy, failures=2) == (2, 0, 6)


def test_an_episode_that_breaks_every_time_is_counted_as_failed(policy: LivePolicy) -> None:
    assert _measured(policy, failures=3) == (0, 2, 6)


def test_an_item_that_cannot_be_played_is_tried_once_counted_and_named(
    policy: LivePolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def broken(item: Item) -> Environment:
        tried.append(item.item_id)
        if len(tried) == 1:
            raise ItemError(f"no item {item.item_id}")
        return ScriptedEnvironment([], won())

    config = Config(tasks={"dbbench": Task()}, model=Model(path=str(TINY)))
    source = ScriptedSource(broken)
    with closing(Evaluator(config, policy, {"dbbench": source})) as evaluator:
        found = [score for ended in evaluator.play(work_of(PLAN, source)) for _, score in ended]
    assert len(found) == len(tried) == 2
    assert found.count(None) == 1
    said = capsys.readouterr()
    assert f"no item {tried[0]}" in said.out + said.err


def test_whatever_an_environment_raises_fails_its_attempt_alone(
    policy: LivePolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def broken(item: Item) -> Environment:
        tried.append(item.item_id)
        end = KeyError("row") if item.item_id == tried[0] else won()
        return ScriptedEnvironment([], end)

    config = Config(tasks={"dbbench": Task()}, model=Model(path=str(TINY)))
    with closing(Evaluator(config, policy, {"dbbench": ScriptedSource(broken)})) as evaluator:
        found = _played(evaluator)
    assert len(found) == 2
    assert found.count(None) == 1
    assert tried.count(tried[0]) == config.dispatch.max_attempts
    said = capsys.readouterr()
    assert f"KeyError: 'row', raised at {policy_servers.__file__}:" in said.out + said.err


class Leaking(ScriptedEnvironment):
    """Cannot be closed."""

    def close(self) -> None:
        raise EnvironmentFailure("the container is gone")


def test_an_episode_counts_although_its_environment_cannot_be_closed(policy: LivePolicy) -> None:
    config = Config(tasks={"dbbench": Task()}, model=Model(path=str(TINY)))
    source = ScriptedSource(lambda _item: Leaking([], won()))
    with closing(Evaluator(config, policy, {"dbbench": source})) as evaluator:
        assert [score and score.reward for score in _played(evaluator)] == [1.0, 1.0]


class LongPrompt(ScriptedEnvironment):
    """Starts with more tokens than a trajectory may have."""

    def start(self) -> Observation:
        return Observation((Message("user", "which mug? " * 1000),))


def test_an_item_whose_first_prompt_is_too_long_cannot_be_played(
    policy: LivePolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def make(item: Item) -> Environment:
        tried.append(item.item_id)
        return (LongPrompt if item.item_id == tried[0] else ScriptedEnvironment)([], won())

    config = Config(tasks={"dbbench": Task()}, model=Model(path=str(TINY)))
    with closing(Evaluator(config, policy, {"dbbench": ScriptedSource(make)})) as evaluator:
        found = _played(evaluator)
    assert len(found) == len(tried) == 2
    assert found.count(None) == 1
    said = capsys.readouterr()
    assert f"the first prompt of dbbench {tried[0]} alone" in said.out + said.err


def test_a_failure_ends_this_measurement_alone_and_a_signal_every_episode(
    policy: LivePolicy,
) -> None:
    def broken(_item: Item) -> Environment:
        raise ConfigError("no containers")

    told = threading.Event()
    config = Config(tasks={"dbbench": Task()}, model=Model(path=str(TINY)))
    source = ScriptedSource(broken)
    with closing(Evaluator(config, policy, {"dbbench": source}, told)) as evaluator:
        with pytest.raises(ConfigError):
            _played(evaluator)
        assert not told.is_set(), "whoever measures the next policy goes on"
    told.set()
    source = ScriptedSource(lambda _item: ScriptedEnvironment([], won()))
    with (
        closing(Evaluator(config, policy, {"dbbench": source}, told)) as evaluator,
        pytest.raises(EpisodeStopped),
    ):
        _played(evaluator)


def test_who_waits_for_an_episode_is_answered_meanwhile(policy: LivePolicy) -> None:
    """So that a signal, or a dead process, is noticed at once."""
    goes_on = threading.Event()

    def slow(_item: Item) -> Environment:
        assert goes_on.wait(60)
        return ScriptedEnvironment([], won())

    config = Config(tasks={"dbbench": Task()}, model=Model(path=str(TINY)))
    source = ScriptedSource(slow)
    with closing(Evaluator(config, policy, {"dbbench": source}, beat_s=0.01)) as evaluator:
        answers = evaluator.play(work_of(PLAN, source))
        assert [next(answers) for _ in range(3)] == [[], [], []]
        goes_on.set()
        assert sum(map(len, answers)) == 2


class SilentEngine(ScriptedEngine):
    """Answers nothing before `fail`."""

    def __init__(self) -> None:
        super().__init__(limits=limits_of(TINY))
        self.asked: list[Future[Completion]] = []

    def submit(self, request: Request) -> Future[Completion]:  # noqa: ARG002 - it reads none
        future: Future[Completion] = Future()
        self.asked.append(future)
        return future

    def fail(self) -> None:
        for future in self.asked:
            future.set_exception(PolicyError("the engine is closed"))


def test_who_stops_asking_waits_for_no_answer_of_the_engine() -> None:
    engine = SilentEngine()
    config = Config(tasks={"dbbench": Task()}, model=Model(path=str(TINY)))
    sources = {"dbbench": ScriptedSource(lambda _item: ScriptedEnvironment([], won()))}
    with serve(engine, {"c": ("current", Path())}) as server, ExitStack() as stack:
        policy = LivePolicy("s", server.url, "current", "c", 0)
        evaluator = stack.enter_context(closing(Evaluator(config, policy, sources, beat_s=0.01)))
        evaluator.abandon = engine.fail
        answers = evaluator.play(work_of(PLAN, sources["dbbench"]))
        while len(engine.asked) < PLAN.items:
            assert next(answers) == []
        answers.close()
    assert all(isinstance(each.exception(), PolicyError) for each in engine.asked)


def test_a_trajectory_longer_than_the_model_is_refused_before_the_run() -> None:
    config = Config(
        tasks={"dbbench": Task()},
        model=Model(path=str(TINY)),
        sampling=Sampling(max_tokens=10**6),
    )
    with pytest.raises(ConfigError, match=r"sampling.max_tokens: 1000000"):
        configs.check(config)


def test_a_step_longer_than_a_trajectory_is_refused_before_the_run() -> None:
    config = Config(
        tasks={"dbbench": Task()},
        model=Model(path=str(TINY)),
        sampling=Sampling(max_tokens=512, max_step_tokens=513),
    )
    with pytest.raises(ConfigError, match=r"sampling.max_step_tokens: 513 .*max_tokens 512"):
        configs.check(config)


def test_servers_of_one_pool_share_their_token() -> None:
    servers = [PolicyServer(name="a", token_env="A"), PolicyServer(name="b")]
    with pytest.raises(ConfigError, match=r"policy.token_env: .*'' and 'A'"):
        configs.check(Config(tasks={"dbbench": Task()}, policy=servers))
