from dataclasses import replace

from run_transitions import World
from steps_kept import append, new_step

from agentrl.core.journal import SampledStep, UnjudgedEpisode, encode_record
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import Reason, Status
from agentrl.db.queries.kept_tokens import kept_tokens
from agentrl.db.store import Store
from agentrl.db.transitions import episodes
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.db.transitions.trajectories.journal import NewStep


def _step(world: World, claimed: ClaimedEpisode, body: Trajectory, number: int) -> NewStep:
    """What the journal holds of a body's step. Its tokens are not looked at."""
    step = SampledStep(
        step=body.steps[number],
        policy=body.policies[number],
        context=b"",
        token_ids=bytes(4 * (body.steps[number].end - body.steps[number].start)),
        logprobs=bytes(4 * (body.steps[number].end - body.steps[number].start)),
    )
    return replace(new_step(world, claimed, number), body=encode_record(step))


def test_tokens_are_kept_in_the_journal_and_then_in_the_body_and_never_counted_twice(
    store: Store,
) -> None:
    world = World.begin(store)

    def kept() -> int:
        return store.ask(lambda session: kept_tokens(session, world.run_id))

    first, second, *_ = world.claimed(world.admit(0)[0])
    body = world.body(first)
    sizes = [step.end - step.start for step in body.steps]
    assert kept() == 0
    append(world, _step(world, first, body, 0), _step(world, second, body, 0))
    assert kept() == 2 * sizes[0]
    append(world, _step(world, first, body, 1))
    world.keep([body])  # before its row says finished, so that the steps stay
    assert kept() == sum(sizes) + sizes[0]
    assert world.finish(first, body)
    assert kept() == sum(sizes) + sizes[0]
    store.transact(
        lambda s: episodes.retry(
            s, second, Reason.ENV_ERROR, max_attempts=9, detail=Status.ENV_ERROR
        )
    )
    assert kept() == sum(sizes)


def test_an_episode_that_waits_for_its_judge_keeps_its_tokens_once(store: Store) -> None:
    world = World.begin(store)
    first, second, *_ = world.claimed(world.admit(0)[0])
    size = sum(step.end - step.start for step in world.body(first).steps)
    for claimed, steps in ((first, 2), (second, 0)):  # with recorded steps, and without
        body = world.body(claimed)
        append(world, *(_step(world, claimed, body, number) for number in range(steps)))
        record = encode_record(UnjudgedEpisode(trajectory=body))
        append(world, replace(new_step(world, claimed, steps), body=record))
    assert store.ask(lambda session: kept_tokens(session, world.run_id)) == 2 * size
