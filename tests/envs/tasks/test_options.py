"""Options that a task does not have, and values that do not fit."""

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.options import Generated, parse


def test_a_task_without_origins_has_generated_items() -> None:
    assert parse("guess", Generated, {"origin": "generated", "items": 3}) == Generated(items=3)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("origin", "guess has no origins: its items are all generated"),
        ("data", "guess reads no data: its items are all generated"),
        ("stile", "guess: unknown option stile; did you mean style?"),
    ],
)
def test_an_option_that_is_not_there_is_an_error_that_says_why(name: str, error: str) -> None:
    with pytest.raises(ItemError) as caught:
        parse("guess", Generated, {name: "agentbench"})
    assert str(caught.value) == error
