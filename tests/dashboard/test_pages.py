"""Each page is drawn, over runs in every state, and its controls work.

What its figures are is tested below it: tests/db and the tests of `dashboard/viewmodels` beside
this.
"""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from run_history import begun, trained
from run_transitions import World
from sqlalchemy import text

from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Task
from agentrl.core.telemetry.outages import AWAY
from agentrl.db.admin import migrate
from agentrl.db.questions import questions
from agentrl.db.store import open_store
from agentrl.db.transitions import alarms
from agentrl.db.transitions.alarms import AlarmReading


def test_the_page_run(runs: Any, url: str, show: Any, said: Any, tables: Any) -> None:
    fresh = said(show("run", runs.store, runs.fresh))
    assert "No group has closed yet." in fresh
    assert fresh.count("No update yet.") == 1
    assert "No update of an episode that this run has played." in fresh
    assert "No policy is live. Episodes wait for one." in fresh
    app = show("run", runs.store, runs.going)
    figures = {metric.label: metric.value for metric in app.metric}
    assert (figures["Version"], figures["Trained tokens"]) == ("3", "240")
    assert any(table.get("trained tokens") and len(table["version"]) == 3 for table in tables(app))
    over = said(show("run", runs.store, runs.over))
    assert "The run is over. No policy is served." in over
    assert "enough updates" in over
    store, run_id = begun(url)
    trained(store, run_id, 1)
    with store.write() as session:
        raised = (AlarmReading("", "skipped", 1.0, 0.0, raised=True), None)
        alarms.add_alarms(session, run_id, f"{run_id}-u1", 1, [raised])
    logs = Path(store.engine.url.database or "").parent / "logs"
    logs.mkdir()
    row = {"event": AWAY, "service": "store", "waited_s": 61.0, "error": "refused"}
    other = row | {"run": "another", "service": "broker"}
    said_at = datetime.now(UTC).isoformat()
    lines = [json.dumps(each | {"timestamp": said_at}) for each in (row, other)]
    (logs / "recorder.log").write_text("\n".join(lines))
    first, second = show("run", store, run_id).warning
    assert first.value == r"recorder waits for store \(61 s\)\: refused"
    assert second.value.startswith("1 alarm is raised")
    store.close()


def test_the_page_tasks(runs: Any, show: Any, said: Any) -> None:
    assert "No group has been admitted yet." in said(show("tasks", runs.store, runs.fresh))
    assert "Groups by outcome" in said(show("tasks", runs.store, runs.over))
    app = show("tasks", runs.store, runs.going)
    app.selectbox[0].select("dbbench").run()
    assert "dbbench" in app.query_params["task"]
    app.toggle[0].set_value(True).run()
    assert not app.exception
    assert "in every group of the task" in said(app)


def test_the_page_episodes(runs: Any, show: Any, said: Any) -> None:
    assert "No episode matches." in said(show("episodes", runs.store, runs.fresh))
    largest = {"version": str(2**53 - 1), "reward_from": "-1.7e308", "reward_to": "1.7e308"}
    app = show("episodes", runs.store, runs.going, run="going", **largest)
    assert app.number_input[2].value == 2**53 - 1
    app = show("episodes", runs.store, runs.going, run="going")
    assert len(re.findall("&amp;episode=", said(app))) == 24
    app.number_input[0].set_value(0.5)
    next(box for box in app.selectbox if box.label == "Order").select("tokens")
    app.button[0].click().run()
    assert not app.exception
    assert "0.5" in app.query_params["reward_from"]
    assert "tokens" in app.query_params["order"]
    assert "Most tokens first" in said(app)
    assert len(re.findall("&amp;episode=", said(app))) == 2 * (1 + 3 + 4)
    link = "[none](http://x)"
    unknown = show("episodes", runs.store, runs.going, run="going", episode=link)
    assert unknown.error[0].value == r"Run going has no episode \[none\]\(http\:\/\/x\)\."


def test_the_page_of_one_episode(url: str, show: Any, said: Any) -> None:
    store = open_store(url)
    migrate.upgrade(store)
    world = World.begin(store)
    bodies = world.ready(0, (0.0, 1.0, 0.5))
    body = bodies[0]
    app = show("episodes", store, world.run_id, run="run", episode=body.episode_id)
    assert app.title[0].value == "Episode dbbench-0-0"
    assert app.multiselect[0].value == ["member 0", "member 1"]  # the reward that differs most
    page = said(app)
    assert "**Step 0 · v0 current · 3 tokens · 0.10 s policy · 0.01 s environment**" in page
    assert "**member 1** · completed · reward 1" in page
    assert "Step 1 · v0 lagged(4) · reward 1" in page
    assert "No update trained on this episode" in page
    assert "⟨5⟩" in page  # no tokenizer is there
    assert "score of the judge" not in page
    for mode in ("advantage", "policy"):
        app.radio[0].set_value(mode).run()
        assert not app.exception
    assert "v0 lagged(4)" in said(app)
    world.sql("UPDATE trajectories SET judge = 'big', judge_score = 0.625, judge_reply = 'so so'")
    world.sql("UPDATE steps SET judge_score = 0.125 WHERE number = 0")
    app.run()
    assert "0.01 s environment · judge's score 0.125**" in said(app)
    assert all(told in said(app) for told in ("score of the judge", "0.625", "so so"))
    world.learn(1, bodies)
    made = show("checkpoints", store, world.run_id, run="run", checkpoint=f"{world.run_id}-v1")
    assert all("learned_at=1" in said(page) for page in (app.run(), made))
    world.sql("UPDATE updates SET state = 'rolled_back'")
    assert not any("learned_at=1" in said(page) for page in (app.run(), made.run()))
    world.sql("UPDATE episodes SET body_sha256 = 'other' WHERE episode_id = :e", e=body.episode_id)
    app.run()
    assert "its row says other" in app.warning[0].value
    (group_id,) = world.admit(1, size=2)
    waits = show("episodes", store, world.run_id, episode=f"{group_id}-0")
    assert waits.info[0].value == "No step is recorded yet."
    store.close()


def test_the_page_checkpoints(runs: Any, show: Any, said: Any) -> None:
    fresh = said(show("checkpoints", runs.store, runs.fresh))
    assert ">v0  part of the run · 1 of 1 checkpoints have files  ◀ newest<" in fresh
    assert "No evaluation yet." in fresh
    named = f"{runs.going}-v000002"
    app = show("checkpoints", runs.store, runs.going, run="going", checkpoint=named)
    assert app.subheader[0].value == "Version 2"
    page = said(app)
    assert "The update is **committed**: 2 groups, 8 episodes, 80 sampled tokens." in page
    assert f"/episodes?run=going&amp;checkpoint={named}" in page
    assert "/episodes?run=going&amp;learned_at=2" in page
    assert "**policy** (local) serves **v0** as *lagged(4)*" in page
    unknown = show("checkpoints", runs.store, runs.over, run="over", checkpoint="none")
    assert unknown.error[0].value == r"Run over has no checkpoint none\."
    assert "No policy server serves a checkpoint now." in said(unknown)


def test_the_page_compare(runs: Any, url: str, show: Any, tables: Any) -> None:
    app = show("compare", runs.store, runs.going, **{"with": "over,fresh"})
    assert tables(app)[0]["run"] == ["going", "over", "fresh"]
    assert [tab.label for tab in app.tabs] == ["By update", "By tokens", "By wall clock"]
    told = [box.value for box in app.info]
    assert told[0] == "These runs have the same configuration."
    assert told[1].startswith("The runs have no evaluation in common")
    app.selectbox[0].select("dbbench").run()
    assert not app.exception
    app.multiselect[0].set_value([]).run()
    assert tables(app)[0]["run"] == ["going"]
    assert not app.exception
    store, alone = begun(url)
    app = show("compare", store, alone)
    said = [box.value for box in app.info]
    assert "None of these runs has an update yet." in said
    assert any(text.startswith("This database has only one run") for text in said)
    store.close()


def test_the_page_accounting(runs: Any, url: str, show: Any, said: Any, tables: Any) -> None:
    fresh = said(show("accounting", runs.store, runs.fresh))
    for nothing in (
        "There are no groups yet.",
        "None. Every episode that ended has finished.",
        "None. Everything came in time.",
    ):
        assert nothing in fresh
    app = show("accounting", runs.store, runs.going)
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures == {"Groups": "6", "Members": "24", "Episodes": "24", "Finished": "24"}
    app.button[0].click().run()
    assert [box.value for box in app.success] == [app.success[0].value] * 2
    assert not app.error
    store, run_id = begun(url)
    trained(store, run_id, 1)
    with store.write() as session:
        session.execute(text("UPDATE trajectories SET sha256 = 'other'"))
        session.execute(text("UPDATE groups SET size = 5 WHERE task = 'dbbench'"))
    app = show("accounting", store, run_id)
    errors = [box.value for box in app.error]
    assert errors == [
        "9 disagreements between episodes, trajectories and updates.",
        "9 members, but 8 episodes. Each member has one episode.",
    ]
    assert set(tables(app)[0]["kind"]) == {"hash_differs", "members_differ"}
    store.close()


def test_the_page_training(runs: Any, url: str, show: Any, said: Any, tables: Any) -> None:
    assert "No update yet." in said(show("training", runs.store, runs.fresh))
    app = show("training", runs.store, runs.going)
    assert "**Loss**" in said(app)
    assert "No alarm was raised." in said(app)
    (figures,) = tables(app)
    assert figures["version"] == ["3", "2", "1"]
    assert {"loss", "entropy", "grad_norm", "trained_tokens_per_s"} <= set(figures)
    app.segmented_control[0].set_value("Speed").run()
    assert not app.exception
    assert "**Trained tokens per second**" in said(app)
    store, run_id = begun(url)
    trained(store, run_id, 1)
    with store.write() as session:
        raised = (AlarmReading("kg", "entropy", 0.01, 0.1, raised=True), None)
        alarms.add_alarms(session, run_id, f"{run_id}-u1", 1, [raised])
    history, _ = tables(show("training", store, run_id))
    assert (history["alarm"], history["raised at version"]) == (["entropy"], ["1"])
    store.close()


def test_the_page_configuration(url: str, show: Any, said: Any, tables: Any) -> None:
    store, run_id = begun(url, config=Config(tasks={"kg": Task(max_turns=7)}))
    app = show("configuration", store, run_id)
    (changed,) = tables(app)
    assert changed["key"] == ["tasks.kg.max_turns"]
    app.toggle[0].set_value(True).run()
    (every,) = tables(app)
    assert len(every["key"]) > 100
    store.close()


def test_the_page_processes(url: str, tmp_path: Path, show: Any, said: Any, tables: Any) -> None:
    store, run_id = begun(url)
    fresh = said(show("processes", store, run_id))
    assert "No process has worked for this run yet." in fresh
    assert "No log file of this run is on this machine." in fresh
    assert "**not started**" in fresh
    trained(store, run_id, 1)
    (tmp_path / "logs").mkdir()
    lines = ('{"event": "Started", "level": "info"}', '{"event": "Lost", "level": "error"}')
    (tmp_path / "logs" / "trainer.log").write_text("\n".join(lines))
    app = show("processes", store, run_id)
    processes, log = tables(app)
    assert processes["role"] == ["policy server", "worker"]
    assert log["event"] == ["Lost", "Started"]
    app.toggle[0].set_value(True).run()
    assert tables(app)[1]["event"] == ["Lost"]
    store.close()


def test_the_page_sql(runs: Any, show: Any) -> None:
    app = show("sql", runs.store, runs.going)

    def run(statement: str) -> None:
        app.text_area[0].set_value(statement)
        app.button[0].click().run()
        assert not app.exception

    run("SELECT task, COUNT(*) AS n FROM episodes GROUP BY task ORDER BY task;")
    assert list(app.dataframe[0].value["task"]) == ["alfworld", "dbbench"]
    assert list(app.dataframe[0].value["n"]) == [20, 20]
    assert "2 rows" in [each.value for each in app.caption]
    run("SELECT * FROM nonsense")
    assert "no such table: nonsense" in app.error[0].value
    run("SELECT 1 WHERE 1 = 2")
    assert app.info[0].value == "The statement returned no rows."
    question = questions()[0]
    app.selectbox[0].select(question.title).run()
    assert app.text_area[0].value == question.sql
    app.button[0].click().run()
    assert not app.exception
    assert not app.error
