"""An episode waits for its judge, and a worker that ends meanwhile costs no sampled token."""

import threading

import pytest
from judge_policies import MODEL, scored
from judged_workers import Judged
from openai_endpoint import Answer, completion, failure
from run_transitions import World
from steps_kept import kept
from structlog.testing import capture_logs
from takeovers import ANSWERS, TURNS, Script, lose, next_command, only_body, record

from agentrl.broker.messages import RunEpisode
from agentrl.core.config.sections.tasks import Judge
from agentrl.core.trajectory import Judgement
from agentrl.core.types import EpisodeState, Reason, Status
from agentrl.db.queries.kept_tokens import kept_tokens


def _require_judged(world: World, judged: Judged, script: Script, score: float) -> None:
    """The episode was sampled and played once, and has the judge's reward."""
    body = only_body(world, judged.workers.link)
    assert (script.turns, judged.played, body.turns) == (TURNS, 1, TURNS)
    assert body.judgement == Judgement(
        judge=MODEL, score=score, reply=f"It went so.\nScore: {score}", environment_reward=2.5
    )
    assert (body.reward, body.environment_reward, body.score) == (2.5 + 2.0 * score, 2.5, 1.0)
    assert body.step_rewards() == [0.5, 0.5, 0.5, 1.0 + 2.0 * score]
    stored = world.ask("SELECT judge, judge_score, judge_reply FROM trajectories")
    assert stored == [(MODEL, score, body.judgement.reply)]
    assert world.accounting() == []
    assert world.ask("SELECT * FROM unserved_steps") == []
    assert kept(world) == []


def test_a_judge_sees_the_conversation_and_its_score_is_the_reward(
    world: World, judged: Judged, script: Script, command: RunEpisode
) -> None:
    judged.worker().run(command)
    ((_, asked),) = judged.endpoint.asked
    (message,) = asked["messages"]
    assert (asked["model"], asked["temperature"], message["role"]) == (MODEL, 0.0, "user")
    assert "===== user\nwhich mug?" in message["content"]
    assert all(f"\n{answer}\n" in message["content"] for answer in ANSWERS)
    assert message["content"].count("===== assistant") == TURNS
    assert "between\n0.0 (failed) and 1.0" in message["content"]
    _require_judged(world, judged, script, 0.75)


@pytest.mark.parametrize("journal", ["steps", "off"])
def test_a_worker_that_is_lost_while_it_asks_leaves_only_the_judging(
    world: World, judged: Judged, script: Script, command: RunEpisode, journal: str
) -> None:
    first, asked, answer = judged.worker(journal), threading.Event(), threading.Event()

    def late(_body: object) -> Answer:
        asked.set()
        answer.wait(60)
        return scored(0.25)

    judged.endpoint.script = late
    running = threading.Thread(target=first.run, args=(command,))
    running.start()
    assert asked.wait(60)
    assert first._waiting.away(lambda _: True) == {(command.episode_id, 1)}  # its clock stands
    sampled = world.store.ask(lambda session: kept_tokens(session, world.run_id))
    assert sampled == TURNS * 5
    lose(world, command)
    judged.endpoint.script = lambda _: scored(0.75)
    with capture_logs() as lines:
        judged.worker(journal).run(next_command(command))
    assert "Episode continues at its judge" in {line["event"] for line in lines}
    answer.set()
    running.join(60)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.reward) == (EpisodeState.FINISHED, 2, 4.0)
    assert (script.turns, judged.played) == (TURNS, 1)
    record(world, judged.workers.link)
    stored = world.ask("SELECT fence, judge_score FROM trajectories ORDER BY fence")
    assert stored == [(1, 0.25), (2, 0.75)]  # the late one published, but its row is the other's
    assert (world.accounting(), kept(world)) == ([], [])


def test_a_worker_that_stops_while_the_judge_is_away_gives_the_episode_back_uncounted(
    world: World, judged: Judged, script: Script, command: RunEpisode
) -> None:
    first = judged.worker()

    def away(_body: object) -> Answer:
        first.stop.set()
        return failure(503)

    judged.endpoint.script = away
    first.run(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.attempts, row.reward) == (EpisodeState.QUEUED, 2, 0, None)
    judged.endpoint.script = lambda _: scored(1.0)
    judged.worker().run(next_command(command))
    _require_judged(world, judged, script, 1.0)


def test_a_judge_that_is_away_is_waited_for(
    world: World, judged: Judged, script: Script, command: RunEpisode
) -> None:
    answers = iter([failure(429), failure(500), completion("I cannot say."), scored(0.0)])
    judged.endpoint.script = lambda _: next(answers)
    with capture_logs() as lines:
        judged.worker().run(command)
    events = [line["event"] for line in lines if line.get("service") == "judge of dbbench"]
    assert events == ["Waiting for a service that is unavailable", "Service is available again"]
    assert world.episode(command.episode_id).attempts == 1
    _require_judged(world, judged, script, 0.0)


@pytest.mark.parametrize(
    "answer",
    [
        completion("No number."),
        scored(7),
        completion(None),
        failure(400, "the context is too long"),
        {"choices": []},
    ],
)
def test_an_episode_without_a_readable_score_fails_with_a_reason_and_never_gets_a_zero(
    world: World, judged: Judged, script: Script, command: RunEpisode, answer: Answer
) -> None:
    judged.endpoint.script = lambda _: answer
    for attempt in (1, 2):
        with capture_logs() as lines:
            judged.worker(attempts=2).run(command)
        (line,) = [each for each in lines if each["event"] == "Attempt failed"]
        assert line["reason"] == Reason.JUDGE_ERROR
        assert "judge big of task dbbench gave no score in 3 tries" in line["error"]
        assert len(judged.endpoint.asked) == 3 * attempt
        command = next_command(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.reason, row.status, row.reward) == (
        EpisodeState.FAILED,
        Reason.JUDGE_ERROR,
        Status.JUDGE_ERROR,
        None,
    )
    assert (script.turns, judged.played) == (TURNS, 1)
    assert kept(world) == []
    assert world.accounting() == []


def test_an_attempt_after_an_unreadable_score_asks_only_the_judge(
    world: World, judged: Judged, script: Script, command: RunEpisode
) -> None:
    judged.endpoint.script = lambda _: completion("No number.")
    judged.worker().run(command)
    assert world.episode(command.episode_id).reason == Reason.JUDGE_ERROR
    judged.endpoint.script = lambda _: scored(0.5)
    judged.worker().run(next_command(command))
    _require_judged(world, judged, script, 0.5)


def test_an_episode_whose_judge_was_removed_ends_with_the_environments_reward(
    world: World, judged: Judged, script: Script, command: RunEpisode
) -> None:
    judged.endpoint.script = lambda _: completion("No number.")
    judged.worker().run(command)
    judged.worker(judge=Judge()).run(next_command(command))
    body = only_body(world, judged.workers.link)
    assert (body.reward, body.fence, body.judgement or None) == (2.5, 2, None)
    assert (script.turns, judged.played) == (TURNS, 1)
