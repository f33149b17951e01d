"""Spans of attempts, as a real collector of OTLP over HTTP hears them."""

import socket
import threading

import pytest
from structlog.testing import capture_logs
from trace_collector import run_collector

from agentrl.core.config.sections.monitoring import Tracing
from agentrl.core.errors import ConfigError
from agentrl.core.telemetry import metrics, otlp, tracing
from agentrl.core.telemetry.otlp import (
    BATCH_CHARACTERS,
    MAX_WAITING_CHARACTERS,
    Patience,
    Sender,
)
from agentrl.core.telemetry.tracing import Span, SpanContext

PATIENT = Patience(60.0, 60.0)


def test_a_trace_follows_from_run_episode_and_fence_alone() -> None:
    mark = tracing.root_context("run-1", "e", 1)
    assert mark == tracing.root_context("run-1", "e", 1)
    # the first 24 bytes of sha256(b"run-1\0e\0" b"1")
    assert mark.traceparent() == ("00-19474e509e93b42491abc9ef3b76914a-353ad2614c949f17-01")
    others = [("run-1", "e", 2), ("run-1", "f", 1), ("run-2", "e", 1), ("run-1e", "", 1)]
    assert len({mark.trace, *(tracing.root_context(*each).trace for each in others)}) == 5


def test_nothing_is_recorded_or_sent_along_where_tracing_is_off() -> None:
    assert tracing.attempt_context("r", "e", 1) is None
    with tracing.attempt(None), tracing.span("step"):
        tracing.annotate_attempt(reward=1.0)
        assert tracing.headers() == {}
        assert not tracing.wants_messages()
    with tracing.continue_trace("completion", tracing.root_context("r", "e", 1).traceparent()):
        assert tracing.headers() == {}


def test_spans_arrive_with_their_parents_in_the_trace_of_their_attempt() -> None:
    own = tracing.root_context("r", "e", 3)
    with (
        run_collector() as collector,
        otlp.export_spans(Tracing(endpoint=collector.url), "mine", "worker", patience=PATIENT),
    ):
        tracing.record_span("queued", tracing.attempt_context("r", "e", 3), 10.0, 12.5, bodies=2)
        with (
            tracing.attempt(tracing.attempt_context("r", "e", 3)) as fields,
            tracing.span("step"),
            tracing.span("policy") as more,
        ):
            fields["task"], more["track"], more["output_tokens"] = "kg", "current", 7
            tracing.annotate_attempt(reward=0.5, success=False)
            sent = tracing.headers()["traceparent"]
            thread = threading.Thread(target=_serve, args=(sent,))
            thread.start()
            thread.join()
    spans = {each.name: each for each in collector.heard}
    assert {each.trace for each in collector.heard} == {f"{own.trace:032x}"}
    root = spans["episode"]
    assert (root.parent, root.span) == ("", f"{own.span:016x}")
    assert root.fields == {
        "agentrl.task": "kg",
        "agentrl.reward": 0.5,
        "agentrl.success": False,
        "gen_ai.agent.name": "mine",
        "gen_ai.operation.name": "invoke_agent",
    }
    assert spans["queued"].parent == spans["step"].parent == root.span
    assert spans["queued"].seconds == pytest.approx(2.5)
    assert spans["policy"].parent == spans["step"].span
    assert spans["completion"].parent == spans["policy"].span
    assert spans["policy"].fields == {
        "agentrl.track": "current",
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.output_tokens": 7,
    }
    assert {each.service for each in collector.heard} == {"agentrl-worker"}


def _serve(traceparent: str) -> None:
    with tracing.continue_trace("completion", traceparent):
        pass


def test_a_span_that_failed_says_with_what_and_the_error_goes_on() -> None:
    with run_collector() as collector:
        with (
            otlp.export_spans(Tracing(endpoint=collector.url), "mine", "worker", patience=PATIENT),
            pytest.raises(KeyError),
            tracing.attempt(tracing.attempt_context("r", "e", 1)),
        ):
            raise KeyError("x")
        assert tracing.headers() == {}
    (span,) = collector.heard
    assert span.failed
    assert span.fields["agentrl.error"] == "KeyError"


def test_a_share_of_attempts_is_traced_and_every_process_picks_the_same() -> None:
    with run_collector() as collector:
        picked = []
        for _ in range(2):
            with otlp.export_spans(
                Tracing(endpoint=collector.url, share=0.25), "mine", "worker", patience=PATIENT
            ):
                chosen = {n for n in range(2000) if tracing.attempt_context("r", str(n), 1)}
                picked.append(chosen)
    assert picked[0] == picked[1]
    assert 400 < len(picked[0]) < 600


@pytest.mark.parametrize("header", [None, "", "00-0-0-01", "nonsense", "00-" + "g" * 32 + "-x-01"])
def test_a_request_without_a_trace_is_served_without_one(header: str | None) -> None:
    with (
        run_collector() as collector,
        otlp.export_spans(Tracing(endpoint=collector.url), "mine", "policy", patience=PATIENT),
        tracing.continue_trace("completion", header),
    ):
        assert tracing.headers() == {}
    assert collector.heard == []


def counted() -> dict[str, float]:
    """Spans so far by what became of them."""
    read = metrics.COMMON.get_sample_value
    return {
        status: read("agentrl_spans_total", {"status": status}) or 0.0
        for status in ("sent", "dropped")
    }


def test_a_collector_that_refuses_costs_counted_spans() -> None:
    before = counted()
    with run_collector() as collector:
        with otlp.export_spans(Tracing(endpoint=collector.url), "mine", "worker", patience=PATIENT):
            tracing.record_span("queued", tracing.attempt_context("r", "e", 1), 0.0, 1.0)
        collector.status = 503
        short = Patience(1.0, 1.0)
        with otlp.export_spans(Tracing(endpoint=collector.url), "mine", "worker", patience=short):
            for _ in range(3):
                tracing.record_span("queued", tracing.attempt_context("r", "e", 1), 0.0, 1.0)
            tracing.flush(60.0)
    after = counted()
    assert {status: after[status] - before[status] for status in after} == {"sent": 1, "dropped": 3}


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (400, "see the collector's answer"),
        (401, "set the collector's key in OTEL_EXPORTER_OTLP_HEADERS"),
        (403, "the key in OTEL_EXPORTER_OTLP_HEADERS needs the right"),
        (404, "check tracing.endpoint, and the project in OTEL_EXPORTER_OTLP_HEADERS"),
    ],
)
def test_a_collector_that_refuses_for_good_is_told_of_once_with_what_to_do(
    status: int, hint: str
) -> None:
    with run_collector() as collector, capture_logs() as lines:
        collector.status = status
        sender = Sender(f"{collector.url}?key=secret", {}, post_s=60.0)
        for number in range(1, 4):
            sender.take(Span("step", SpanContext(1, number), 0, 0.0, 1.0, {}))
            sender.flush(60.0)
        sender.close(60.0)
    assert (sender.sent, sender.dropped) == (0, 3)
    refused, ended = lines
    assert refused["event"] == "Collector refuses spans, which are dropped"
    assert (refused["log_level"], refused["status"]) == ("warning", status)
    assert (refused["endpoint"], refused["answer"]) == (collector.url, "no, because")
    assert refused["hint"].startswith(hint)
    assert (ended["event"], ended["dropped"]) == ("Spans dropped", 3)


def test_a_collector_that_is_busy_is_not_told_of_as_one_that_refuses() -> None:
    with run_collector() as collector, capture_logs() as lines:
        collector.status = 429
        sender = Sender(collector.url, {}, post_s=0.5)
        sender.take(Span("step", SpanContext(1, 1), 0, 0.0, 1.0, {}))
        sender.flush(60.0)
        sender.close(60.0)
    assert [line["event"] for line in lines] == ["Spans dropped"]


@pytest.mark.parametrize(
    ("variable", "sent"),
    [
        (
            "wandb-api-key=k-1,project_id=team/my-project",
            {"wandb-api-key": "k-1", "project_id": "team/my-project"},
        ),
        ("Authorization=Basic%20YXBpOmstMQ==", {"authorization": "Basic YXBpOmstMQ=="}),
    ],
)
def test_headers_of_the_environment_are_sent(
    variable: str, sent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", variable)
    with run_collector() as collector:
        with otlp.export_spans(Tracing(endpoint=collector.url), "mine", "worker", patience=PATIENT):
            tracing.record_span("queued", tracing.attempt_context("r", "e", 1), 0.0, 1.0)
        (headers,) = collector.headers
    assert sent.items() <= headers.items()


def test_long_spans_go_in_requests_of_bounded_size_and_wait_in_bounded_memory() -> None:
    text = "a" * (BATCH_CHARACTERS // 2)
    with run_collector() as collector:
        config = Tracing(endpoint=collector.url, messages=True)
        with otlp.export_spans(config, "mine", "worker", patience=PATIENT):
            mark = tracing.attempt_context("r", "e", 1)
            for _ in range(8):
                tracing.record_span("policy", mark, 0.0, 1.0, input_messages=text)
    assert len(collector.heard) == 8
    assert max(map(len, collector.bodies)) < 1.1 * (BATCH_CHARACTERS + len(text))
    assert {headers["content-encoding"] for headers in collector.headers} == {"gzip"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = Sender(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", {})
        fit = MAX_WAITING_CHARACTERS // len(text)
        for number in range(1, fit + 41):
            sender.take(Span("policy", SpanContext(1, number), 0, 0.0, 1.0, {"said": text}))
        assert 30 < sender.dropped <= 40
        sender.close(0.0)


def test_nobody_waits_for_a_collector_that_never_answers() -> None:
    """Each of these waits would be as long as the collector is silent: for ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = Sender(
            f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", {}, max_waiting=100
        )
        for number in range(1, 1001):
            sender.take(Span("step", SpanContext(1, number), 0, 0.0, 1.0, {}))
        sender.close(0.2)
    assert sender.sent == 0
    assert sender.dropped >= 1000


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://x/v1/traces"])
def test_an_endpoint_that_is_no_url_is_named(endpoint: str) -> None:
    with (
        pytest.raises(ConfigError, match=r"tracing\.endpoint: .* is not an http\(s\) URL"),
        otlp.export_spans(Tracing(endpoint=endpoint), "mine", "worker"),
    ):
        pass
