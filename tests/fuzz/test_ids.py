"""Names of any length and content against the columns of the store: kept, or refused by name."""

import itertools
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_transitions import World

from agentrl.broker.api import Delivery
from agentrl.broker.messages import EpisodeFinished, encode
from agentrl.core.errors import ItemError
from agentrl.core.trajectory import Trajectory
from agentrl.db.models.runs import Run
from agentrl.db.transitions import groups
from agentrl.db.transitions.groups import NewGroup
from agentrl.envs.contract import Item
from agentrl.workers.recorder import keep_bodies

NAMES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["x" * 200, "x" * 201, "é" * 200, "\0", "a\0b", "\N{GRINNING FACE}" * 201]),
)
FIELDS = ("server_id", "track", "checkpoint_id")


def named(body: Trajectory, names: dict[str, Any], finish_reason: str) -> Trajectory:
    policies = tuple(msgspec.structs.replace(policy, **names) for policy in body.policies)
    steps = tuple(msgspec.structs.replace(s, finish_reason=finish_reason) for s in body.steps)
    return msgspec.structs.replace(body, policies=policies, steps=steps)


def delivery(body: Trajectory) -> Delivery:
    message = EpisodeFinished(trajectory=body)
    return Delivery(message, encode(message), None)


PLACES = itertools.count()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.fixed_dictionaries(dict.fromkeys(FIELDS, NAMES)), NAMES, st.integers(-(2**63), 2**63 - 1))
def test_a_body_of_any_names_is_stored_or_refused_and_spares_the_others(
    world: World, names: dict[str, str], finish_reason: str, version: int
) -> None:
    (group_id,) = world.admit(next(PLACES), size=2)
    odd, plain = [world.body(claimed, 1.0) for claimed in world.claimed(group_id)]
    odd = named(odd, {**names, "version": version}, finish_reason)
    refused = keep_bodies(world.store, world.run_id, [delivery(odd), delivery(plain)])
    assert all(reason and each.wire == delivery(odd).wire for each, reason in refused)
    stored = world.ask(
        "SELECT episode_id FROM trajectories WHERE episode_id IN (:odd, :plain) ORDER BY 1",
        odd=odd.episode_id,
        plain=plain.episode_id,
    )
    expected = {plain.episode_id} if refused else {odd.episode_id, plain.episode_id}
    assert {episode_id for (episode_id,) in stored} == expected


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(NAMES)
def test_an_item_of_any_name_is_refused_when_it_is_read_or_can_be_admitted(
    world: World, item_id: str
) -> None:
    try:
        Item("dbbench", item_id, {})
    except ItemError:
        return
    place = next(PLACES)
    group = NewGroup(f"{world.run_id}-{place}", "dbbench", place, 0, item_id, 2)
    with world.store.write() as session:
        groups.admit_groups(session, session.get_one(Run, world.run_id), [group])
    assert world.group(group.group_id).item_id == item_id
