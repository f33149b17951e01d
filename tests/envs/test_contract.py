import json
from pathlib import Path

import pytest
from policy_servers import ScriptedEnvironment, ScriptedSource, won

from agentrl.core.errors import ItemError
from agentrl.core.types import ID_LENGTH
from agentrl.db.models.episodes import Episode
from agentrl.envs.contract import Item, recovery_of
from agentrl.envs.gateway.task_source import read


def test_an_id_is_as_long_as_its_column_or_refused_when_the_item_is_read() -> None:
    assert Episode.__table__.columns["item_id"].type.length == ID_LENGTH  # type: ignore[attr-defined]
    assert Item("kg", "ü" * ID_LENGTH, {}).item_id == "ü" * ID_LENGTH
    with pytest.raises(
        ItemError, match=r"kg: the item id 'x{40}'… has 201 characters, the limit is 200"
    ):
        Item("kg", "x" * (ID_LENGTH + 1), {})


@pytest.mark.parametrize("item_id", ["a\0b", "half \ud83d of a character"])
def test_an_id_that_no_database_stores_is_refused(item_id: str) -> None:
    with pytest.raises(ItemError, match="which databases cannot store"):
        Item("kg", item_id, {})


@pytest.mark.parametrize("item_id", ["x" * 230, "a\0b"])
def test_a_file_of_items_is_refused_before_any_is_admitted(tmp_path: Path, item_id: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"id": item_id, "q": 1}) + "\n")
    with pytest.raises(ItemError, match="gateway: the item id"):
        read(path)


def test_a_source_declares_how_an_episode_goes_on_or_starts_again() -> None:
    source = ScriptedSource(lambda _item: ScriptedEnvironment([], won()))
    assert recovery_of(source) == "restart_only"
    source.recovery = "replayable"  # type: ignore[attr-defined]
    assert recovery_of(source) == "replayable"
    source.recovery = "replayble"  # type: ignore[attr-defined]
    with pytest.raises(ItemError, match="talk: recovery 'replayble' is unknown") as found:
        recovery_of(source)
    assert found.value.hint == "declare one of replayable, restart_only"
