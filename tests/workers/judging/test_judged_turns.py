"""A judge scores each turn: its scores are rewards of the turns, and a worker may end meanwhile."""

import threading

import pytest
from judge_policies import MODEL, scored, scored_turns
from judged_workers import CRITIC, Judged
from msgspec.structs import replace
from openai_endpoint import Answer, failure
from run_transitions import World
from steps_kept import kept
from structlog.testing import capture_logs
from takeovers import TURNS, Script, lose, next_command, only_body, record

from agentrl.broker.messages import EpisodeFinished, RunEpisode, decode
from agentrl.core.config.sections.tasks import Judge
from agentrl.core.config.sections.training import Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import EpisodeState, Reason
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.turns import token_advantages

SCORES = (0.0, 1.0, 0.25, 0.5)


@pytest.fixture
def judged(judged: Judged) -> Judged:
    judged.judge = replace(CRITIC, scores="turns")
    judged.endpoint.script = lambda _: scored_turns(*SCORES)
    return judged


def _require_judged(world: World, judged: Judged, script: Script) -> None:
    """The episode was sampled and played once, and each turn has the judge's reward."""
    body = only_body(world, judged.workers.link)
    assert (script.turns, judged.played, body.turns) == (TURNS, 1, TURNS)
    assert body.judgement
    assert (body.judgement.turn_scores, body.judgement.score) == (SCORES, 0.4375)
    assert (body.reward, body.environment_reward, body.score) == (2.5 + 2.0 * 1.75, 2.5, 1.0)
    assert body.step_rewards() == [0.5, 2.5, 1.0, 2.0]
    stored = world.ask("SELECT judge, judge_score, judge_reply FROM trajectories")
    assert stored == [(MODEL, 0.4375, body.judgement.reply)]
    steps = world.ask("SELECT reward, judge_score FROM steps ORDER BY number")
    assert steps == list(zip([0.5, 2.5, 1.0, 2.0], SCORES, strict=True))
    assert (world.accounting(), kept(world)) == ([], [])


def test_the_judge_is_asked_once_and_its_scores_reward_the_turns(
    world: World, judged: Judged, script: Script, command: RunEpisode
) -> None:
    judged.worker().run(command)
    ((_, asked),) = judged.endpoint.asked
    text = asked["messages"][0]["content"]
    assert text.count("===== assistant, turn ") == TURNS
    assert text.index("assistant, turn 1\n") < text.index("\none\n") < text.index("turn 2\n")
    assert f"turn 1 to turn {TURNS}" in " ".join(text.split())
    _require_judged(world, judged, script)


@pytest.mark.parametrize("journal", ["steps", "off"])
def test_a_worker_that_is_lost_while_it_asks_leaves_only_the_judging(
    world: World, judged: Judged, script: Script, command: RunEpisode, journal: str
) -> None:
    first, asked, answer = judged.worker(journal), threading.Event(), threading.Event()

    def late(_body: object) -> Answer:
        asked.set()
        answer.wait(60)
        return scored_turns(*[0.0] * TURNS)

    judged.endpoint.script = late
    running = threading.Thread(target=first.run, args=(command,))
    running.start()
    assert asked.wait(60)
    lose(world, command)
    judged.endpoint.script = lambda _: scored_turns(*SCORES)
    with capture_logs() as lines:
        judged.worker(journal).run(next_command(command))
    assert "Episode continues at its judge" in {line["event"] for line in lines}
    answer.set()
    running.join(60)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.reward) == (EpisodeState.FINISHED, 2, 6.0)
    assert (script.turns, judged.played) == (TURNS, 1)
    record(world, judged.workers.link)
    found = world.ask("SELECT judge_score FROM steps WHERE fence = 2 ORDER BY number")
    assert found == [(score,) for score in SCORES]
    assert (world.accounting(), kept(world)) == ([], [])


def test_a_judge_that_is_away_or_miscounts_is_asked_again(
    world: World, judged: Judged, script: Script, command: RunEpisode
) -> None:
    answers = iter(
        [failure(429), scored(1.0), failure(500), scored_turns(*SCORES, 1.0), scored_turns(*SCORES)]
    )
    judged.endpoint.script = lambda _: next(answers)
    judged.worker().run(command)
    assert world.episode(command.episode_id).attempts == 1
    _require_judged(world, judged, script)


@pytest.mark.parametrize(
    "refused",
    [
        (scored_turns(*SCORES[:-1]), "3 scores of 4 turns"),
        (scored_turns(*SCORES, 0.5), "5 scores of 4 turns"),
        (scored_turns(0.0, 1.5, 0.0, 0.0), "the score 1.5 is not between 0 and 1"),
        (scored_turns(0.0, "0/1", 0.0, 0.0), "3 scores of 4 turns"),
    ],
)
def test_turns_without_readable_scores_never_get_a_zero_and_are_only_judged_again(
    world: World, judged: Judged, script: Script, command: RunEpisode, refused: tuple[Answer, str]
) -> None:
    answer, why = refused
    judged.endpoint.script = lambda _: answer
    with capture_logs() as lines:
        judged.worker().run(command)
    (line,) = [each for each in lines if each["event"] == "Attempt failed"]
    assert line["reason"] == Reason.JUDGE_ERROR
    assert why in line["error"]
    assert len(judged.endpoint.asked) == 3
    row = world.episode(command.episode_id)
    assert (row.state, row.reward) == (EpisodeState.QUEUED, None)
    judged.endpoint.script = lambda _: scored_turns(*SCORES)
    judged.worker().run(next_command(command))
    _require_judged(world, judged, script)


def test_an_episode_that_waits_for_a_judge_of_the_whole_may_get_one_of_its_turns(
    world: World, judged: Judged, script: Script, command: RunEpisode
) -> None:
    judged.endpoint.script = lambda _: scored_turns(*SCORES, 7)
    judged.worker(judge=CRITIC).run(command)
    assert world.episode(command.episode_id).reason == Reason.JUDGE_ERROR
    judged.endpoint.script = lambda _: scored_turns(*SCORES)
    judged.worker().run(next_command(command))
    _require_judged(world, judged, script)


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        # rewards 0.5, 2.5, 0.5, 2 and 2.5, 2.5, 0.5, 1: ∓1, 0, 0, ±0.5 around their means
        (Trainer(credit="turn"), [-0.5, 0.5, 0.5, 0.5]),
        # returns 2.125, 3.25, 1.5, 2 and 4, 3, 1, 1
        (
            Trainer(credit="discounted", credit_options={"discount": 0.5}),
            [-0.9375, 0.125, 0.25, 0.5],
        ),
        # ∓0.5 of the episodes; all answers and the first prompt are states of both
        (
            Trainer(credit="gigpo", credit_options={"discount": 0.5}),
            [-1.4375, -0.375, -0.25, 0.0],
        ),
    ],
)
def test_the_scores_of_turns_reach_the_advantages_of_their_tokens(
    world: World, judged: Judged, command: RunEpisode, credit: Trainer, expected: list[float]
) -> None:
    answers = iter([scored_turns(0.0, 1.0, 0.0, 0.5), scored_turns(1.0, 1.0, 0.0, 0.0)])
    judged.endpoint.script = lambda _: next(answers)
    second = replace(command, episode_id=f"{command.episode_id[:-1]}1")
    for each in (command, second):
        judged.worker().run(each)
    record(world, judged.workers.link)
    stored = world.ask("SELECT body FROM trajectories ORDER BY episode_id")
    members = [_trajectory(body) for (body,) in stored]
    assert [member.reward for member in members] == [5.5, 6.5]
    found = token_advantages(members, resolve_settings(credit))
    for member, advantages, sign in zip(members, found, (1.0, -1.0), strict=True):
        per_turn = [set(advantages[step.start : step.end].tolist()) for step in member.steps]
        assert per_turn == [{sign * each} for each in expected]


def _trajectory(body: bytes) -> Trajectory:
    message = decode(body)
    assert isinstance(message, EpisodeFinished)
    return message.trajectory


FUNCTION = """
def late_is_worse(item, episode):
    turns = [each for each in episode.messages if each["turn"]]
    return [1.0 / each["turn"] for each in turns]
"""


def test_a_function_scores_the_turns(
    world: World, judged: Judged, command: RunEpisode, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("judge") / "turns.py"
    path.write_text(FUNCTION)
    function = Judge(function=f"{path}:late_is_worse", scores="turns", environment_weight=0.0)
    judged.worker(judge=function).run(command)
    body = only_body(world, judged.workers.link)
    assert body.step_rewards() == pytest.approx([1.0, 1 / 2, 1 / 3, 1 / 4])
    assert body.judge_scores() == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert (body.environment_reward, judged.endpoint.asked) == (2.5, [])
