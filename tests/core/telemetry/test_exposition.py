"""A process's metrics over HTTP: who may read them, and that nobody who reads them can harm it."""

import socket
from contextlib import ExitStack

import pytest
from prometheus_scrape import free_port, request_metrics

from agentrl.core.config.sections.monitoring import Metrics
from agentrl.core.errors import ConfigError
from agentrl.core.telemetry import metrics
from agentrl.core.telemetry.exposition import serve_metrics


def test_what_is_counted_is_exported_with_run_and_process_and_other_roles_are_not() -> None:
    port = free_port()
    with serve_metrics(Metrics(port=port), "mine", "worker", "worker-7") as url:
        metrics.ATTEMPTS.labels(task="counted here", status="completed").inc()
        metrics.ATTEMPTS.labels(task="counted here", status="completed").inc(2)
        metrics.RUNNING.set(3)
        metrics.POLICY_CALL.labels(track="mine").observe(0.02)
        metrics.UPDATES.labels(status="committed").inc()  # a trainer's
        status, text = request_metrics(port)
    assert (status, url) == (200, f"http://127.0.0.1:{port}/metrics")
    own = 'process="worker-7",run="mine"'
    assert f'agentrl_attempts_total{{{own},status="completed",task="counted here"}} 3.0' in text
    assert f"agentrl_running_attempts{{{own}}} 3.0" in text
    assert f"agentrl_redraws_total{{{own}}} " in text
    buckets = f'agentrl_policy_call_seconds_bucket{{le="0.025",{own},track="mine"}} 1.0'
    assert buckets in text
    assert "agentrl_updates_total" not in text
    assert "process_resident_memory_bytes" in text


def test_nothing_listens_where_no_port_is_set() -> None:
    with serve_metrics(Metrics(), "mine", "worker") as url:
        assert url == ""


def test_the_port_is_free_again_afterwards() -> None:
    port = free_port()
    for _ in range(2):
        with serve_metrics(Metrics(port=port), "mine", "recorder"):
            assert request_metrics(port)[0] == 200


def test_a_gauge_that_is_cleared_is_not_exported() -> None:
    port = free_port()
    with serve_metrics(Metrics(port=port), "mine", "dispatcher"):
        metrics.ALARMS.labels(name="entropy").set(2)
        before = request_metrics(port)[1]
        metrics.forget(metrics.ALARMS)
        after = request_metrics(port)[1]
    assert 'name="entropy"' in before
    assert 'name="entropy"' not in after


def test_a_token_is_demanded_where_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHER", "s3cret")
    port = free_port()
    with serve_metrics(Metrics(port=port, token_env="WATCHER"), "mine", "recorder"):
        assert request_metrics(port)[0] == 401
        assert request_metrics(port, headers={"authorization": "Bearer other"})[0] == 401
        assert request_metrics(port, headers={"authorization": "Bearer s3cret"})[0] == 200


def test_off_loopback_a_token_is_required_and_without_it_nothing_listens() -> None:
    port = free_port()
    with (
        pytest.raises(ConfigError, match=r"metrics server needs a bearer token: 0\.0\.0\.0"),
        serve_metrics(Metrics(port=port, host="0.0.0.0"), "mine", "recorder"),  # noqa: S104
    ):
        pass
    socket.create_server(("127.0.0.1", port)).close()


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address"),
            serve_metrics(Metrics(port=port), "mine", "recorder"),
        ):
            pass


def test_another_path_is_told_where_metrics_are() -> None:
    port = free_port()
    with serve_metrics(Metrics(port=port), "mine", "recorder"):
        assert request_metrics(port, "/") == (404, "metrics are at /metrics\n")


def test_scrapes_that_hang_keep_neither_the_next_one_nor_the_process() -> None:
    port = free_port()
    with serve_metrics(Metrics(port=port), "mine", "recorder"), ExitStack() as stack:
        for _ in range(20):
            hanging = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            hanging.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert request_metrics(port)[0] == 200
