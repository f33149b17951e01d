"""A process without a supervisor says in the database what it waits for."""

from pathlib import Path

from run_history import begun
from running import eventually

from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.telemetry.outages import report_available, report_away
from agentrl.db.queries import progress
from agentrl.db.registry.outages import read_outages
from agentrl.ops.processes.outage_reporter import report_outages
from agentrl.ops.supervisor.screen import ProgressPrinter


def test_it_says_so_until_it_is_over_and_takes_it_back_when_it_ends(tmp_path: Path) -> None:
    config = Config(tasks={"dbbench": Task()}, run=Run(name="run", home=str(tmp_path)))
    store, run_id = begun(config.store_url())
    told: list[str] = []
    show = ProgressPrinter(told.append, store, run_id, "agentrl run resume x")

    def services() -> list[str]:
        found = store.ask(lambda session: read_outages(session, run_id))
        assert all(each.process.startswith("worker (") for each in found)
        return [each.service for each in found if each.service in ("library", "museum")]

    def become(expected: list[str]) -> None:
        eventually(lambda: services() == expected, within_s=60, text=lambda: str(services()))

    try:
        with report_outages(config, "worker", look_s=0.05):
            report_away("library", 2.0, "no route")
            become(["library"])
            show(store.ask(lambda session: progress.totals(session, run_id)))
            report_away("museum", 0.0, "refused")
            become(["library", "museum"])
            report_available("library", 3.0)
            become(["museum"])
        assert services() == []
    finally:
        for service in ("museum", "library"):
            report_available(service, 0.0)
        store.close()
    assert any("waits for library: no route" in line for line in told)


def test_it_goes_on_once_a_database_without_tables_has_the_run(tmp_path: Path) -> None:
    config = Config(tasks={"dbbench": Task()}, run=Run(name="run", home=str(tmp_path)))
    report_away("museum", 0.0, "refused")
    try:
        with report_outages(config, "worker", look_s=0.01):
            eventually((tmp_path / "store.db").exists, within_s=60, text=lambda: "it never tries")
            store, run_id = begun(config.store_url())
            eventually(
                lambda: any(
                    each.service == "museum"
                    for each in store.ask(lambda session: read_outages(session, run_id))
                ),
                within_s=60,
                text=lambda: "its thread has ended",
            )
        store.close()
    finally:
        report_available("museum", 0.0)
