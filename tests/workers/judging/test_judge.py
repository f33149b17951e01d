"""One judge: how often it is asked, how long it is waited for, and what becomes of its score."""

import dataclasses
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
from agentrl.core.journal import UnjudgedEpisode
from agentrl.core.retry import Backoff, Retry
from agentrl.core.trajectory import BranchPoint, BranchReward, Judgement
from agentrl.core.trajectory_body import check
from agentrl.core.types import ABORT
from agentrl.workers.judging.judge import (
    EpisodeToJudge,
    Judge,
    JudgeAway,
    JudgeSilent,
    RateLimit,
    Scorer,
    UnreadableReply,
    number_turns,
    with_judgement,
)

EPISODE = EpisodeToJudge({}, [], "completed", reward=1.0, score=0.0, turns=3)


def _judge(
    ask: Callable[[EpisodeToJudge], tuple[tuple[float, ...], str]], **keys: Any
) -> tuple[Judge, list[float]]:
    """A judge, and the pauses that it makes without waiting."""
    pauses: list[float] = []
    backoff = Backoff(sleep=pauses.append)
    retry = Retry("judge", JudgeAway, stop=threading.Event(), backoff=backoff)
    return Judge("talk", JudgeSection(**keys), Scorer("critic", ask), retry), pauses


def test_a_judge_that_is_away_costs_no_try() -> None:
    answers = iter([JudgeAway("503")] * 20 + [((0.5,), "so so")])

    def ask(_episode: EpisodeToJudge) -> tuple[tuple[float, ...], str]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    judge, pauses = _judge(ask, tries=1)
    assert judge.judge(EPISODE) == Judgement(
        judge="critic", score=0.5, reply="so so", environment_reward=1.0
    )
    assert len(pauses) == 20


def test_a_request_that_is_never_answered_costs_a_try_once_others_are_answered() -> None:
    other, asked = dataclasses.replace(EPISODE, turns=1), 0

    def ask(episode: EpisodeToJudge) -> tuple[tuple[float, ...], str]:
        nonlocal asked
        if episode is other:
            return (1.0,), ""
        asked += 1
        if asked > 5:  # until then the judge may be away
            judge.judge(other)
        raise JudgeSilent("timed out")

    judge, pauses = _judge(ask, tries=3)
    with pytest.raises(JudgeError, match="gave no score in 3 tries: timed out"):
        judge.judge(EPISODE)
    assert (asked, len(pauses)) == (8, 5)


@pytest.mark.parametrize("is_away", [False, True])
def test_a_judge_without_other_requests_is_probed(is_away: bool) -> None:
    now, asked, probes = 0.0, 0, list[float]()

    def ask(_episode: EpisodeToJudge) -> tuple[tuple[float, ...], str]:
        nonlocal now, asked
        now, asked = now + 50.0, asked + 1
        if is_away and asked > 9:  # until then it is
            return (1.0,), ""
        raise JudgeSilent("timed out")

    def probe() -> None:
        probes.append(now)
        if is_away:
            raise JudgeSilent("timed out")

    retry = Retry("judge", JudgeAway, stop=threading.Event(), backoff=Backoff(sleep=lambda _: None))
    scorer = Scorer("critic", ask, probe)
    judge = Judge("talk", JudgeSection(tries=3), scorer, retry, lambda: now)
    if is_away:
        assert judge.judge(EPISODE).score == 1.0
    else:
        with pytest.raises(JudgeError, match="gave no score in 3 tries: timed out"):
            judge.judge(EPISODE)
    assert probes == [50.0, 200.0, 350.0]


@given(st.floats() | st.none(), st.integers(1, 4))
def test_a_score_is_one_that_was_given_in_range_or_there_is_none(
    score: float | None, tries: int
) -> None:
    asked = 0

    def ask(_episode: EpisodeToJudge) -> tuple[tuple[float, ...], str]:
        nonlocal asked
        asked += 1
        if score is None:
            raise UnreadableReply("no score in the reply")
        return (score,), ""

    judge, pauses = _judge(ask, tries=tries, low=-1.0, high=3.0)
    if score is not None and -1.0 <= score <= 3.0:
        assert (judge.judge(EPISODE).score, asked) == (score, 1)
        return
    with pytest.raises(JudgeError, match=f"judge critic of task talk gave no score in {tries}"):
        judge.judge(EPISODE)
    assert (asked, pauses) == (tries, [])


@given(st.lists(st.floats(-1.5, 3.5), min_size=1, max_size=6))
def test_turns_have_scores_if_all_of_them_are_in_range(scores: list[float]) -> None:
    judge, _ = _judge(lambda _: (tuple(scores), ""), scores="turns", low=-1.0, high=3.0)
    episode = dataclasses.replace(EPISODE, turns=len(scores), by_turn=True)
    if not all(-1.0 <= each <= 3.0 for each in scores):
        with pytest.raises(JudgeError, match="is not between -1 and 3"):
            judge.judge(episode)
        return
    judgement = judge.judge(episode)
    assert judgement.turn_scores == tuple(scores)
    assert judgement.score == pytest.approx(sum(scores) / len(scores))


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

    def ask(_episode: EpisodeToJudge) -> tuple[tuple[float, ...], str]:
        nonlocal asking, most
        with lock:
            asking += 1
            most = max(most, asking)
        go_on.wait(60)
        with lock:
            asking -= 1
        return (1.0,), ""

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


def test_weights_add_the_score_of_a_turn_to_the_step_that_ends_it() -> None:
    plain = trajectory(spans=((5, 3), (4, 6), (1, 2)))
    first, second, third = plain.steps
    aborted = replace(first, finish_reason=ABORT)
    played = replace(plain, steps=(aborted, replace(second, reward=0.5), third), reward=1.5)
    judgement = Judgement(
        judge="critic", score=0.5, reply="", environment_reward=1.5, turn_scores=(0.25, 0.75)
    )
    added = with_judgement(played, judgement, JudgeSection(scores="turns", weight=2.0), 9.0)
    check(added)
    assert added.judge_scores() == [None, 0.25, 0.75]
    assert (added.reward, added.step_rewards()) == (3.5, [0.0, 1.0, 2.5])
    alone = JudgeSection(scores="turns", environment_weight=0.0)
    replaced = with_judgement(played, judgement, alone, 9.0)
    assert (replaced.reward, replaced.step_rewards()) == (1.0, [0.0, 0.25, 0.75])
    assert replaced.environment_reward == 1.5


def _said(*roles: str) -> tuple[dict[str, str], ...]:
    return tuple({"role": role, "content": f"{number}"} for number, role in enumerate(roles))


def test_turns_are_numbered_after_the_messages_that_a_task_begins_with() -> None:
    messages = _said("user", "assistant", "user", "assistant", "tool", "assistant")
    assert [each["turn"] for each in number_turns(messages, 2)] == [0, 0, 0, 1, 0, 2]
    assert [each["content"] for each in number_turns(messages, 2)] == list("012345")


@given(st.lists(st.sampled_from(["user", "tool", "assistant"]), max_size=9), st.integers(0, 9))
def test_the_numbers_of_turns_count_up_to_the_last_one(roles: list[str], turns: int) -> None:
    numbers = [each["turn"] for each in number_turns(_said(*roles), turns) if each["turn"]]
    count = min(turns, roles.count("assistant"))
    assert numbers == list(range(turns - count + 1, turns + 1))


def test_an_episode_with_branches_is_judged_as_a_whole() -> None:
    section, said = JudgeSection(scores="turns"), _said("user", "assistant", "user", "assistant")
    plain = trajectory()
    whole = UnjudgedEpisode(trajectory=plain, messages=said)
    assert EpisodeToJudge.of({}, whole, section).by_turn
    first, second = plain.steps
    branched = replace(second, branch=BranchPoint(begin=first.end))
    forked = replace(whole, trajectory=replace(plain, steps=(first, branched)))
    seen = EpisodeToJudge.of({}, forked, section)
    assert (seen.by_turn, seen.messages) == (False, said)
    judge, _ = _judge(lambda _: ((0.5,), ""), scores="turns")
    judgement = judge.judge(seen)
    added = with_judgement(forked.trajectory, judgement, section, 9.0)
    check(added)
    assert (added.judge_scores(), added.step_rewards()) == ([None, None], [0.0, 1.5])
