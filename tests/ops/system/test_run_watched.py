"""A run that is watched: its metrics have values, and one trace has the spans of every process."""

import json
from pathlib import Path

import pytest
from prometheus_scrape import (
    free_port,
    metrics_with_values,
    panel_metrics,
    read_dashboard,
    request_metrics,
    scrape,
)
from running import ROOT, agentrl, eventually
from trace_collector import Collector, ReceivedSpan, run_collector

from agentrl.core.telemetry import tracing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]

ELSEWHERE = {  # of an external model, or of what went wrong
    *("agentrl_alarms", "agentrl_redraws_total", "agentrl_reissues_total"),
    *("agentrl_restarts_total", "agentrl_service_away", "agentrl_takeovers_total"),
    *("agentrl_tracker_failures_total", "agentrl_upstream_tries_total"),
}


def environment(home: Path, base: int, **more: str) -> dict[str, str]:
    return {
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__NAME": "watched",
        "AGENTRL__RUN__STOP_UPDATES": "100000",
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "3",
        "AGENTRL__DISPATCH__GROUP_SIZE": "4",
        "AGENTRL__ENVS__URL": f"http://127.0.0.1:{base}",
        "AGENTRL__METRICS__PORT": str(base + 1),
        "AGENTRL__METRICS__LOOK_S": "0.5",
        "AGENTRL__EVAL__EVERY": "1",
        "AGENTRL__EVAL__ITEMS": "1",
        "AGENTRL__EVAL__NICE": "0",
        "AGENTRL__TRACKERS__USE": '["tensorboard"]',
    } | more


def test_a_run_tells_what_the_dashboard_asks_for_and_traces_its_attempts(tmp_path: Path) -> None:
    home, log, base = tmp_path / "home", tmp_path / "log", free_port(10)
    config = str(ROOT / "configs" / "quickstart.toml")

    def ports() -> list[int]:
        try:
            told = json.loads((home / "processes.json").read_text())["processes"]
        except (OSError, ValueError):
            return []
        return [base + 1, *(row["metrics"] for row in told.values())]

    def text() -> str:
        try:
            return "\n".join(scrape(port) for port in ports())
        except OSError:
            return ""

    def logs() -> str:
        tails = [path.read_text()[-800:] for path in sorted((home / "logs").glob("*.log"))]
        return "\n".join([log.read_text(), *tails])

    wanted = panel_metrics(read_dashboard()) - ELSEWHERE
    with run_collector() as collector:
        more = {"AGENTRL__TRACING__ENDPOINT": collector.url}
        told = environment(home, base) | more
        with agentrl("up", config, environment=told, output=log) as process:
            eventually(
                lambda: wanted <= metrics_with_values(text()) and whole_trace(collector),
                within_s=500,
                text=lambda: f"never exported: {wanted - metrics_with_values(text())}\n{logs()}",
            )
            assert len(set(ports())) == 9
            process.terminate()
            assert process.wait(20) == 0
    with pytest.raises(ConnectionRefusedError):
        request_metrics(base + 1)
    one_trace_has_every_span(collector)
    lines_name_run_and_trace(home)


def lines_name_run_and_trace(home: Path) -> None:
    """Each process's log, but for what libraries print and what comes before the run is opened."""
    for name in ("dispatcher", "worker-0", "recorder", "trainer", "policy-policy", "envs"):
        written = (home / "logs" / f"{name}.log").read_text().splitlines()
        lines = [json.loads(line) for line in written if line.startswith("{")]
        assert lines
        assert {line["run"] for line in lines} == {"watched"}
        ours = [line for line in lines if "run_id" in line]
        for line in (line for line in ours if "trace_id" in line):
            mark = tracing.root_context(line["run_id"], line["episode_id"], line["fence"])
            assert line["trace_id"] == f"{mark.trace:032x}"
        if name in ("trainer", "policy-policy"):
            assert len(ours) > 0


SPANS = {  # who made each, and what it belongs to
    ("agentrl-dispatcher", "send", "episode"),
    ("agentrl-worker", "queued", "episode"),
    ("agentrl-worker", "episode", ""),
    ("agentrl-worker", "start", "episode"),
    ("agentrl-envs", "session", "start"),
    ("agentrl-worker", "step", "episode"),
    ("agentrl-worker", "policy", "step"),
    ("agentrl-policy", "completion", "policy"),
    ("agentrl-worker", "environment", "step"),
    ("agentrl-envs", "session", "environment"),
    ("agentrl-worker", "publish", "episode"),
    ("agentrl-recorder", "record", "episode"),
    ("agentrl-trainer", "train", "episode"),
}


def whole_trace(collector: Collector) -> str:
    """Of an attempt that was learned from and whose every span has arrived; empty for none yet.

    A process that sends late is waited for; what one could not send before it ended is lost.
    """
    trained = [each.trace for each in list(collector.heard) if each.name == "train"]
    whole = (each for each in trained if none_missing(collector.trace(each)))
    return next(whole, "")


def none_missing(spans: list[ReceivedSpan]) -> bool:
    made = {each.span for each in spans}
    return kinds(spans) >= SPANS and all(each.parent in made for each in spans if each.parent)


def kinds(spans: list[ReceivedSpan]) -> set[tuple[str, str, str]]:
    names = {each.span: each.name for each in spans}
    return {(each.service, each.name, names.get(each.parent, "")) for each in spans}


def one_trace_has_every_span(collector: Collector) -> None:
    spans = collector.trace(whole_trace(collector))
    assert kinds(spans) == SPANS
    (root,) = [each for each in spans if not each.parent]
    fields = root.fields
    fences = (1, 2, 3)  # one that took too long is played again
    own = [
        tracing.root_context(fields["agentrl.run_id"], fields["agentrl.episode_id"], n)
        for n in fences
    ]
    assert (root.trace, root.span) in {(f"{of.trace:032x}", f"{of.span:016x}") for of in own}
    assert fields["agentrl.status"] in {"completed", "task_limit", "invalid_action"}
    steps = [each for each in spans if each.name == "step"]
    assert sum(each.seconds for each in steps) <= root.seconds
    assert len({each.span for each in spans}) == len(spans)
