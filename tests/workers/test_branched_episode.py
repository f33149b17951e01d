"""An episode with branches goes on with the next worker as one without them does."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from policy_servers import FixedPool, ScriptedEnvironment, won
from scripted_episodes import MemoryJournal, RecordingScript, run_episode

from agentrl.core.trajectory import StepRecord, Trajectory
from agentrl.envs.contract import Message, Outcome, ToolCall, TurnTerms
from agentrl.workers.episode import ReplayDiverged
from agentrl.workers.episode_context import EpisodeContext

# The turn that each answer follows: a fork of turn 1, a conversation of its own, whose turn is left
# out of the loss, the fork once more, and the first branch again.
FOLLOWS = (None, 1, 0, 3, 2)
TURNS = len(FOLLOWS) + 1


class Branching(ScriptedEnvironment):
    """Answers as an agent program of the gateway does that rewrites its history."""

    def __init__(self, follows: Sequence[int | None] = FOLLOWS) -> None:
        super().__init__([f"answer {number}" for number in range(len(follows))], won())
        self._follows = list(follows)

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        outcome = super().call(calls)
        if outcome.done:
            return outcome
        follows = self._follows.pop(0)
        (message,) = outcome.messages
        answer = (Message("user", message.content),)  # no tool is named, whatever was sampled
        return replace(
            outcome, messages=answer, follows=follows, terms=TurnTerms(trained=follows != 0)
        )


def _steps_by_time(body: Trajectory) -> list[StepRecord]:
    found = sorted(body.steps, key=lambda step: step.requested_at)
    assert len({step.requested_at for step in found}) == len(found) == TURNS
    return found


@pytest.mark.parametrize("cut", range(TURNS + 1))
def test_an_episode_with_branches_continues_after_any_step_that_was_kept(
    pool: FixedPool, context: EpisodeContext, recording: RecordingScript, cut: int
) -> None:
    whole = MemoryJournal()
    first = run_episode(Branching(), pool, context, seed="1", journal=whole)
    assert len(whole.steps) == len(first.steps) == TURNS
    assert len({step.context for step in first.steps}) == 3
    recording.turns.clear()
    again = MemoryJournal(whole.steps[:cut])
    second = run_episode(Branching(), pool, context, seed="2", journal=again)
    assert len(recording.turns) == TURNS - cut
    assert again.remaining == 0
    pairs = zip(_steps_by_time(first), _steps_by_time(second), strict=True)
    for before, after in list(pairs)[:cut]:
        assert _loss_of(first, before) == _loss_of(second, after)
        assert (before.call, before.answer, before.trained) == (
            after.call,
            after.answer,
            after.trained,
        )
    assert second.parents() == first.parents()
    if cut == TURNS:
        assert second.token_ids == first.token_ids
        assert second.loss_mask == first.loss_mask
    trained = [step.end - step.start for step in second.steps if step.trained]
    assert second.mask().sum() == sum(trained)


def _loss_of(body: Trajectory, step: StepRecord) -> tuple[object, ...]:
    """The tokens of a step with their log-probabilities, and whether they are in the loss."""
    span = slice(step.start, step.end)
    arrays = body.tokens(), body.behaviour(), body.mask()
    return (*(each[span].tolist() for each in arrays), body.policies[step.policy_index])


def test_a_program_that_branches_otherwise_than_recorded_is_not_continued(
    pool: FixedPool, context: EpisodeContext
) -> None:
    whole = MemoryJournal()
    run_episode(Branching(), pool, context, seed="1", journal=whole)
    otherwise = Branching((None, 0, *FOLLOWS[2:]))
    with pytest.raises(ReplayDiverged, match="another answer to step 1"):
        run_episode(otherwise, pool, context, seed="2", journal=MemoryJournal(whole.steps))
