import pytest
from run_transitions import World

from agentrl.db.queries.episodes.detail import episode_steps
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
def test_calls_and_answers_are_cut_and_end_with_their_length(
    store: Store, text: str, shown: str
) -> None:
    world = World.begin(store)
    body = world.ready(0)[0]
    world.sql("UPDATE steps SET call = :text, answer = :text WHERE number = 0", text=text)
    with store.read() as session:
        step = episode_steps(session, body.episode_id, body.fence, most=5)[0]
    assert (step.call, step.answer) == (shown, shown)
