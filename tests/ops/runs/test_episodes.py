"""Episodes in the terminal: the list, and one episode turn by turn."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from run_history import begun, trained
from sqlalchemy import update

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import StoreError
from agentrl.core.types import EpisodeState
from agentrl.db.models.episodes import Episode, Step, StoredTrajectory
from agentrl.db.models.updates import UpdateGroup
from agentrl.db.queries.episodes.filter import EpisodeFilter
from agentrl.db.queries.episodes.search import SEARCH_LIMITS
from agentrl.db.store import Store, open_store
from agentrl.ops.runs.episodes import list_episodes, show_episode
from agentrl.ops.runs.lifecycle import RunPlace


@pytest.fixture
def place(tmp_path: Path) -> RunPlace:
    """Two updates of two tasks, four episodes of each at an update."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    config = Config(tasks={"dbbench": Task()}, model=Model(path="models/tiny"))
    store, run_id = begun(url, config=config)
    with closing(store):
        trained(store, run_id, 2)
    return RunPlace(url, "run")


@pytest.fixture
def store(place: RunPlace) -> Store:
    return open_store(place.url)


def list_lines(
    place: RunPlace, capsys: pytest.CaptureFixture[str], limit: int = 50, **wanted: str
) -> list[str]:
    """Return the lines below the heads of the table."""
    list_episodes(place, EpisodeFilter(**wanted), limit, as_json=False)
    return capsys.readouterr().out.splitlines()[1:]


def test_the_list_has_the_newest_episodes_that_match(
    place: RunPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(list_lines(place, capsys)) == 16
    assert len(list_lines(place, capsys, limit=3)) == 3
    assert len(list_lines(place, capsys, task="dbbench")) == 8
    (*_, last) = list_lines(place, capsys, task="dbbench", item_id="item-1")
    name, item, *_, status, reward, turns, tokens, version = last.split()
    assert (name, item) == ("dbbench-1-0", "item-1")
    assert (status, reward, turns, tokens, version) == ("completed", "1", "2", "40", "v1")
    assert len(list_lines(place, capsys, words="DONE")) == 16
    list_episodes(place, EpisodeFilter(state=EpisodeState.FAILED), 5, as_json=False)
    assert capsys.readouterr().out == "no episode matches\n"
    list_episodes(place, EpisodeFilter(task="dbbench"), 5, as_json=True)
    assert {row["task"] for row in json.loads(capsys.readouterr().out)} == {"dbbench"}


def test_the_list_reads_on_until_it_is_full(
    place: RunPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = EpisodeFilter(task="dbbench", item_id="")
    few = replace(SEARCH_LIMITS, window=2)
    list_episodes(place, wanted, 7, as_json=True, limits=few)
    names = [row["episode_id"] for row in json.loads(capsys.readouterr().out)]
    list_episodes(place, wanted, 7, as_json=True)
    assert names == [row["episode_id"] for row in json.loads(capsys.readouterr().out)]
    assert len(names) == 7


def test_an_episode_is_printed_turn_by_turn(
    place: RunPlace, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    call = '[{"name": "execute_sql", "arguments": {"query": "SELECT 1"}, "error": ""}]'
    with store.write() as session:
        session.execute(update(UpdateGroup).values(advantage=-1.5))
        session.execute(update(Step).where(Step.number == 0).values(call=call, answer="[(1,)]"))
        session.execute(update(Step).where(Step.number == 1).values(answer=""))
    show_episode(place, "dbbench-2-3", as_json=False)
    head, _, prompt, *turns = capsys.readouterr().out.splitlines()
    assert " · item item-2 · finished (completed) · 2 turns · 40 tokens · attempt 1" in head
    assert head.endswith(" · trained in v2 · advantage -1.5")
    assert prompt
    assert "⟨" not in prompt  # the tokenizer of the run's model is known
    assert turns == [
        "── Step 0 · v0 current · 5 tokens · 0.10 s policy · 0.01 s environment",
        'execute_sql {"query":"SELECT 1"}',
        "→ [(1,)]",
        "── Step 1 · v0 lagged(4) · 5 tokens · 0.10 s policy · 0.01 s environment",
        "no call",
        "→ no answer",
    ]
    show_episode(place, head.split()[0], as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["prompt"] == prompt
    assert [step["answer"] for step in found["steps"]] == ["[(1,)]", ""]


def test_text_of_an_episode_does_not_steer_the_terminal(
    place: RunPlace, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with store.write() as session:
        session.execute(update(Step).values(answer="\x1b]0;title\x07a\tb\né"))
    show_episode(place, "dbbench-1-0", as_json=False)
    assert "→ �]0;title�a\tb\né\n" in capsys.readouterr().out


def test_an_episode_without_a_body_says_why_and_still_has_its_steps(
    place: RunPlace, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with store.write() as session:
        session.execute(update(StoredTrajectory).values(body=b""))
    show_episode(place, "dbbench-1-0", as_json=False)
    told = capsys.readouterr().out
    assert "The trajectory was deleted (`agentrl db prune --bodies`)." in told
    assert told.count("→ done") == 2
    show_episode(place, "dbbench-1-0", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["prompt"], found["prompt_missing"][:26]) == (None, "The trajectory was deleted")


def test_an_unknown_episode_or_run_is_an_error(place: RunPlace, store: Store) -> None:
    with pytest.raises(StoreError, match="run run has no episode dbbench-9-0") as refused:
        show_episode(place, "dbbench-9-0", as_json=False)
    assert refused.value.hint == "`agentrl episodes` without an episode lists the newest ones"
    with pytest.raises(StoreError, match="other"):
        list_episodes(RunPlace(place.url, "other"), EpisodeFilter(), 5, as_json=False)
    with store.write() as session:  # an open episode has neither times nor a reward
        session.execute(update(Episode).values(reward=None, started_at=None, tokens=None))
    show_episode(place, "dbbench-1-0", as_json=False)
