"""A process's metrics over HTTP: who may read them, and that nobody who reads them can harm it."""

import socket
import threading
from contextlib import ExitStack

import pytest
from prometheus_scrape import free_port, request_metrics
from running import eventually

from agentrl.core.config.sections import Metrics
from agentrl.core.errors import ConfigError
from agentrl.core.telemetry import metrics
from agentrl.core.telemetry.exposition import PLACES, serve_metrics


def test_what_is_counted_is_exported_with_run_and_process_and_other_roles_are_not() -> None:
    port = free_port()
    with serve_metrics(Metrics(port=port), "mine", "worker", "worker-7") as url:
        metrics.ATTEMPTS.add(task="kg", status="completed")
        metrics.ATTEMPTS.add(2, task="kg", status="completed")
        metrics.RUNNING.add(3)
        metrics.POLICY_CALL.observe(0.02, track="current")
        metrics.UPDATES.add(status="committed")  # a trainer's
        status, text = request_metrics(port)
    assert (status, url) == (200, f"http://127.0.0.1:{port}/metrics")
    own = 'process="worker-7",run="mine"'
    assert f'agentrl_attempts_total{{{own},status="completed",task="kg"}} 3.0' in text
    assert f"agentrl_running_attempts{{{own}}} 3.0" in text
    assert f"agentrl_redraws_total{{{own}}} 0.0" in text
    buckets = f'agentrl_policy_call_seconds_bucket{{le="0.025",{own},track="current"}} 1.0'
    assert buckets in text
    assert "agentrl_updates_total" not in text
    assert "process_resident_memory_bytes" in text


def test_nothing_listens_and_nothing_is_counted_where_no_port_is_set() -> None:
    with serve_metrics(Metrics(), "mine", "worker") as url:
        metrics.REDRAWS.add()
    port = free_port()
    with serve_metrics(Metrics(port=port), "mine", "worker"):
        _, text = request_metrics(port)
    assert url == ""
    assert 'agentrl_redraws_total{process="worker",run="mine"} 0.0' in text


def test_the_port_is_free_again_afterwards() -> None:
    port = free_port()
    for _ in range(2):
        with serve_metrics(Metrics(port=port), "mine", "recorder"):
            assert request_metrics(port)[0] == 200
    assert metrics.BODY_BYTES.child is None


def test_a_gauge_that_is_cleared_is_not_exported() -> None:
    port = free_port()
    with serve_metrics(Metrics(port=port), "mine", "dispatcher"):
        metrics.ALARMS.set(2, name="entropy")
        before = request_metrics(port)[1]
        metrics.ALARMS.clear()
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


def test_scrapes_that_hang_hold_a_few_threads_for_a_while_and_nothing_else() -> None:
    port = free_port()
    others = set(threading.enumerate())

    def busy() -> int:
        names = [thread.name for thread in set(threading.enumerate()) - others]
        return sum("process_request_thread" in name for name in names)

    def answers() -> bool:
        """Those beyond PLACES are hung up on."""
        try:
            return request_metrics(port)[0] == 200
        except OSError:
            return False

    exporting = serve_metrics(Metrics(port=port), "mine", "recorder", scrape_s=0.5)
    with exporting, ExitStack() as stack:
        hanging = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(PLACES + 4)
        ]
        hanging[0].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert busy() <= PLACES
        metrics.BODIES.add(status="stored")  # the process goes on
        eventually(answers, within_s=60, text=lambda: "no scrape is answered")
        assert busy() <= PLACES
