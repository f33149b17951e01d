"""Reads metrics as Prometheus does."""

import http.client
import json
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from running import ROOT

NAME = r"\bagentrl_[a-z_]+|\bprocess_resident_memory_bytes"


def free_port(count: int = 1) -> int:
    """Return the first of so many consecutive free ports.

    Each process that tests looks from a place of its own, below the ports that systems hand out:
    two that look at the same moment would both find the same ones free.
    """
    for look in range(200):
        first = 21000 + (os.getpid() + look) * 50 % 10_000
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def request_metrics(
    port: int, path: str = "/metrics", headers: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Return status and text of one scrape."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def scrape(port: int) -> str:
    """Return the text of a scrape that is answered."""
    status, text = request_metrics(port)
    assert status == 200, text
    return text


def metrics_with_values(text: str) -> set[str]:
    """The names of the metrics that have a value; those of a histogram without their endings."""
    names = {re.split(r"[ {]", line)[0] for line in text.splitlines() if line[:1] not in ("#", "")}
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def panel_metrics(dashboard: dict[str, Any], pattern: str = NAME) -> set[str]:
    """The metrics that its panels ask for; those of a histogram without their endings."""
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found = {name for expr in asked for name in re.findall(pattern, expr)}
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def read_dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "deploy/grafana/agentrl.json").read_text())
    return found
