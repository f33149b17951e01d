"""What docs and the example dashboard say of metrics is what processes export."""

import re
from dataclasses import dataclass

from prometheus_scrape import panel_metrics, read_dashboard
from running import ROOT

from agentrl.core.telemetry import metrics


@dataclass(frozen=True)
class Declared:
    """A metric as it is declared."""

    name: str
    kind: str
    words: str
    labels: tuple[str, ...]
    role: str


def declarations() -> list[Declared]:
    """Every metric, in the order of the roles."""
    found = []
    for role, registry in {"all": metrics.COMMON, **metrics.REGISTRIES}.items():
        for each in registry._collector_to_names:
            (family,) = each.describe()
            ending = "_total" if family.type == "counter" else ""
            name = f"{family.name}{ending}"
            labels = tuple(each._labelnames)  # type: ignore[attr-defined]
            found.append(Declared(name, family.type, family.documentation, labels, role))
    return found


def test_the_list_of_metrics_is_what_the_code_declares() -> None:
    text = (ROOT / "docs/monitoring.md").read_text().replace("\n  ", " ")
    listed = [line for line in text.splitlines() if re.match(r"- `agentrl_|\*\*\w+\*\*$", line)]
    expected = []
    for each in declarations():
        role = f"**{each.role}**"
        labels = f"{{{','.join(each.labels)}}}" if each.labels else ""
        expected += [role] if role not in expected else []
        expected.append(f"- `{each.name}{labels}`: {each.words}")
    assert listed == expected


def test_the_end_of_a_name_says_the_kind_of_its_metric() -> None:
    kinds = {"total": "counter", "seconds": "histogram"}
    for each in declarations():
        kind = kinds.get(each.name.rpartition("_")[2], "gauge")
        assert each.kind == ("gauge" if each.name == "agentrl_queue_wait_seconds" else kind)


def test_the_list_of_spans_names_those_that_processes_make() -> None:
    text = (ROOT / "docs/monitoring.md").read_text()
    folders = ("workers", "serving", "envs", "trainer")
    code = "".join(f.read_text() for folder in folders for f in (ROOT / folder).rglob("*.py"))
    made = set(re.findall(r'tracing\.(?:span|record_span|continue_trace)\("(\w+)"', code))
    spans = text.split("The spans of an attempt")[1].split("\n\n")[1]
    assert set(re.findall(r"^- `(\w+)` ", spans, re.M)) == made | {"episode"}


def test_the_dashboard_asks_for_metrics_that_exist_and_leaves_few_out() -> None:
    names = {each.name for each in declarations()}
    asked = panel_metrics(read_dashboard())
    assert asked - names == {"process_resident_memory_bytes"}
    assert len(names & asked) > 0.8 * len(names)


def test_panels_have_titles_places_and_ids_of_their_own() -> None:
    panels = read_dashboard()["panels"]
    for key in ("id", "title"):
        assert len({panel[key] for panel in panels}) == len(panels)
    assert len({tuple(panel["gridPos"].items()) for panel in panels}) == len(panels)


def test_names_end_with_a_unit_and_labels_are_few() -> None:
    allowed = {"task", "status", "state", "kind", "track", "queue", "reason", "name"}
    for each in declarations():
        assert re.fullmatch("agentrl(_[a-z]+)+", each.name)
        assert each.name.endswith("_total") == (each.kind == "counter")
        assert set(each.labels) <= allowed


def test_prometheus_scrapes_every_process_of_the_quickstart() -> None:
    from agentrl.core import config_loading
    from agentrl.ops.supervisor.children import children

    file = ROOT / "configs/quickstart.toml"
    config = config_loading.load(file, {"AGENTRL__METRICS__PORT": "9300"})
    ports = [9300, *(child.metrics for child in children(config, file))]
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    assert [int(port) for port in re.findall(r"- 127\.0\.0\.1:(\d+)", text)] == ports
