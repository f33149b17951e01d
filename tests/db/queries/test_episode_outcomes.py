import msgspec
from run_transitions import World

from agentrl.core.types import UpdateState
from agentrl.db.queries.episode_outcomes import (
    EpisodeOutcome,
    first_metrics,
    recent_episodes,
    recent_metrics,
)
from agentrl.db.store import Store


def test_the_last_groups_are_those_that_were_ready_last_whatever_became_of_them(
    store: Store,
) -> None:
    world = World.begin(store)
    groups = [world.ready(place, (0.0, 1.0))[0].group_id for place in range(4)]
    world.admit(7)
    world.sql("UPDATE groups SET state = 'filtered' WHERE group_id = :g", g=groups[3])
    with store.read() as session:
        found = recent_episodes(session, world.run_id, "dbbench", 2)
        nothing = recent_episodes(session, world.run_id, "another", 2)
    both = {"current": 1, "lagged(4)": 1}
    assert sorted(found, key=lambda each: (each.group_id, each.solved)) == [
        EpisodeOutcome(group, solved, both) for group in groups[2:] for solved in (False, True)
    ]
    assert nothing == []


def test_a_span_that_broke_off_counts_for_no_track_and_another_fence_for_nothing(
    store: Store,
) -> None:
    world = World.begin(store)
    (group_id,) = world.admit(0, size=2)
    for claimed in world.claimed(group_id):
        body = world.body(claimed, 1.0)
        broken = msgspec.structs.replace(body.steps[0], finish_reason="abort")
        body = msgspec.structs.replace(body, steps=(broken, body.steps[1]))
        assert world.finish(claimed, body)
        world.keep([body, msgspec.structs.replace(body, fence=9)])
    with store.read() as session:
        found = recent_episodes(session, world.run_id, "dbbench", 5)
    assert found == [EpisodeOutcome(group_id, True, {"lagged(4)": 1})] * 2


def test_metrics_are_those_of_updates_that_stand(store: Store) -> None:
    world = World.begin(store)
    states = [UpdateState.COMMITTED, UpdateState.ROLLED_BACK, UpdateState.COMMITTED]
    for version, state in enumerate([*states, UpdateState.COMMITTED], 1):
        world.add_update(version, state=state, metrics={"v": version})
    with store.read() as session:
        assert recent_metrics(session, world.run_id, 2) == [{"v": 4}, {"v": 3}]
        assert recent_metrics(session, world.run_id, 9) == [{"v": 4}, {"v": 3}, {"v": 1}]
        assert first_metrics(session, world.run_id, 2) == [{"v": 1}, {"v": 3}]
        assert first_metrics(session, "another", 2) == []
