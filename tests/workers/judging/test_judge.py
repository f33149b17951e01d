"""One judge: how often it is asked, how long it is waited for, and what becomes of its score."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from running import eventually
from trajectories import trajectory

from agentrl.core.config.sections.tasks import Judge as JudgeSection
from agentrl.core.errors import JudgeError
from agentrl.core.retry import Backoff, Retry
from agentrl.core.trajectory import BranchReward, Judgement
from agentrl.workers.judging.judge import (
    EpisodeToJudge,
    Judge,
    JudgeAway,
    RateLimit,
    Scorer,
    UnreadableReply,
    with_judgement,
)

EPISODE = EpisodeToJudge({}, [], "completed", reward=1.0, score=0.0, turns=3)


def _judge(
    ask: Callable[[EpisodeToJudge], tuple[float, str]], **keys: Any
) -> tuple[Judge, list[float]]:
    """A judge, and the pauses that it makes without waiting."""
    pauses: list[float] = []
    backoff = Backoff(sleep=pauses.append)
    retry = Retry("judge", JudgeAway, stop=threading.Event(), backoff=backoff)
    return Judge("talk", JudgeSection(**keys), Scorer("critic", ask), retry), pauses


def test_a_judge_that_is_away_costs_no_try() -> None:
    answers = iter([JudgeAway("503")] * 20 + [(0.5, "so so")])

    def ask(_episode: EpisodeToJudge) -> tuple[float, str]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    judge, pauses = _judge(ask, tries=1)
    assert judge.judge(EPISODE) == Judgement(
        judge="critic", score=0.5, reply="so so", environment_reward=1.0
    )
    assert len(pauses) == 20


@given(st.floats() | st.none(), st.integers(1, 4))
def test_a_score_is_one_that_was_given_in_range_or_there_is_none(
    score: float | None, tries: int
) -> None:
    asked = 0

    def ask(_episode: EpisodeToJudge) -> tuple[float, str]:
        nonlocal asked
        asked += 1
        if score is None:
            raise UnreadableReply("no score in the reply")
        return score, ""

    judge, pauses = _judge(ask, tries=tries, low=-1.0, high=3.0)
    if score is not None and -1.0 <= score <= 3.0:
        assert (judge.judge(EPISODE).score, asked) == (score, 1)
        return
    with pytest.raises(JudgeError, match=f"judge critic of task talk gave no score in {tries}"):
        judge.judge(EPISODE)
    assert (asked, pauses) == (tries, [])


def test_requests_are_spread_evenly() -> None:
    now = 100.0
    limit = RateLimit(30, clock=lambda: now)
    assert [limit.reserve() for _ in range(3)] == [0.0, 2.0, 4.0]
    now = 103.0
    assert limit.reserve() == 3.0
    now = 200.0
    assert [limit.reserve() for _ in range(2)] == [0.0, 2.0]
    assert [RateLimit(None).reserve() for _ in range(3)] == [0.0] * 3


def test_no_more_requests_than_allowed_are_under_way() -> None:
    asking, most, lock, go_on = 0, 0, threading.Lock(), threading.Event()

    def ask(_episode: EpisodeToJudge) -> tuple[float, str]:
        nonlocal asking, most
        with lock:
            asking += 1
            most = max(most, asking)
        go_on.wait(60)
        with lock:
            asking -= 1
        return 1.0, ""

    judge, _ = _judge(ask, concurrency=2)
    threads = [threading.Thread(target=judge.judge, args=(EPISODE,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    eventually(lambda: most == 2, within_s=60, text=lambda: str(most))
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert (most, asking) == (2, 0)


def test_weights_add_the_score_to_the_last_turn() -> None:
    plain = trajectory()
    steps = replace(plain.steps[0], reward=0.5), plain.steps[1]
    branches = (BranchReward(step=0, reward=1.0),)
    played = replace(plain, reward=1.5, steps=steps, branch_rewards=branches)
    judgement = Judgement(judge="critic", score=0.25, reply="", environment_reward=1.5)
    added = with_judgement(played, judgement, JudgeSection(weight=2.0), 9.0)
    assert (added.reward, added.step_rewards()) == (2.0, [0.5, 1.5])
    assert added.branch_rewards == (BranchReward(step=0, reward=1.5),)
    assert (added.environment_reward, added.finished_at) == (1.5, 9.0)
    alone = JudgeSection(weight=1.0, environment_weight=0.0)
    replaced = with_judgement(played, judgement, alone, 9.0)
    assert (replaced.reward, replaced.step_rewards()) == (0.25, [0.0, 0.25])
    assert replaced.environment_reward == 1.5
