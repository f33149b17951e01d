"""Rows of the journal, as a worker makes them."""

from collections.abc import Sequence

from run_transitions import World

from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.db.transitions.trajectories import journal
from agentrl.db.transitions.trajectories.journal import NewStep


def new_step(
    world: World, claimed: ClaimedEpisode, number: int, parent_fence: int | None = None
) -> NewStep:
    """A step of an attempt. `parent_fence`: by default of the attempt itself, if not the first."""
    parent = claimed.fence if number and parent_fence is None else parent_fence
    return NewStep(
        episode_id=claimed.episode_id,
        fence=claimed.fence,
        number=number,
        parent_fence=parent,
        attempt=claimed.attempt,
        run_id=world.run_id,
        body=f"{claimed.fence}/{number}".encode(),
        started_at=claimed.started_at,
    )


def append(world: World, *steps: NewStep) -> set[tuple[str, int]]:
    """Store steps; the attempts that were refused."""
    return world.store.transact(lambda session: journal.append_steps(session, steps))


def kept(world: World, episode_id: str = "%") -> Sequence[tuple[int, int]]:
    """(fence, number) of the rows, sorted."""
    return world.ask(
        "SELECT fence, number FROM journal WHERE episode_id LIKE :e ORDER BY fence, number",
        e=episode_id,
    )
