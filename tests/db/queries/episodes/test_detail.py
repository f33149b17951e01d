import pytest
from run_transitions import World

from agentrl.db.queries.episodes.detail import TEXT, episode_steps
from agentrl.db.store import Store


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("naïve", "naïve"),
        ("naïve λ", "naïve… (7 characters)"),
        ("猫" * 9, "猫猫猫猫猫… (9 characters)"),
    ],
)
def test_an_answer_is_cut_and_ends_with_its_length(store: Store, text: str, shown: str) -> None:
    world = World.begin(store)
    body = world.ready(0)[0]
    world.sql("UPDATE steps SET call = :text, answer = :text WHERE number = 0", text=text)
    with store.read() as session:
        step = episode_steps(session, body.episode_id, body.fence, most=5)[0]
    assert (step.call, step.answer) == (text, shown)


def test_a_long_call_is_cut_and_ends_with_its_length(store: Store) -> None:
    world = World.begin(store)
    body = world.ready(0)[0]
    world.sql("UPDATE steps SET call = :text WHERE number = 0", text="x" * (TEXT + 1))
    with store.read() as session:
        step = episode_steps(session, body.episode_id, body.fence)[0]
    assert step.call == f"{'x' * TEXT}… (20001 characters)"
