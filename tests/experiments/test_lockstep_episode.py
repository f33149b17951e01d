import threading
from collections.abc import Sequence

import pytest

from agentrl.core.errors import EnvironmentFailure
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.experiments.simulation.lockstep_episode import Question, Work, play
from agentrl.workers.attempt_errors import EpisodeStopped
from agentrl.workers.policies.client import Ask, Completion, PolicyClient

POLICY = LivePolicy("s", "", "current", "c", 0)


def asking(name: int, times: int, fails: bool = False) -> Work[list[int]]:
    """Work that asks so many times and returns what it was answered."""

    def work(client: PolicyClient) -> list[int]:
        found = []
        for turn in range(times):
            ask = Ask([name, turn], 1, 1.0, (), 0, "")
            found += client.complete(POLICY, ask, timeout_s=1.0).token_ids
        if fails:
            raise EnvironmentFailure("broke")
        return found

    return work


class Server:
    """Answers with ten times the first token plus the second, and remembers its waves."""

    def __init__(self) -> None:
        self.waves: list[list[int]] = []

    def __call__(self, questions: Sequence[Question]) -> Sequence[Completion]:
        self.waves.append([question.ask.prompt[0] for question in questions])
        prompts = [question.ask.prompt for question in questions]
        return [Completion([10 * name + turn], [0.0], "stop") for name, turn in prompts]


def test_works_advance_in_lockstep_and_later_ones_take_free_places() -> None:
    server = Server()
    works = [asking(1, 1), asking(2, 3), asking(3, 2)]
    assert list(play(works, server, at_once=2)) == [[10], [20, 21, 22], [30, 31]]
    assert server.waves == [[1, 2], [2], [2, 3], [3]]  # a free place is taken a wave later


def test_work_that_asks_nothing_ends_without_a_wave() -> None:
    server = Server()
    assert list(play([asking(1, 0)], server)) == [[]]
    assert server.waves == []


def test_what_a_work_raises_ends_the_play_and_every_other_strand() -> None:
    before = set(threading.enumerate())
    with pytest.raises(EnvironmentFailure, match="broke"):
        list(play([asking(1, 1, fails=True), asking(2, 5)], Server()))
    assert set(threading.enumerate()) <= before


def test_strands_are_stopped_where_the_server_fails() -> None:
    ended = []

    def work(client: PolicyClient) -> None:
        try:
            client.complete(POLICY, Ask([1], 1, 1.0, (), 0, ""), timeout_s=1.0)
        except EpisodeStopped:
            ended.append(True)
            raise

    def serve(_: Sequence[Question]) -> Sequence[Completion]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(play([work, work], serve))
    assert ended == [True, True]
