"""`agentrl envs audit`: prints what an environment does, before anything trains on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.core import logging
from agentrl.core.config.sections.tasks import Envs
from agentrl.envs.tasks.audit import AuditSettings, audit_figures
from agentrl.ops.tasks.check import print_rows, timed_rows


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """`source`: a task or ADAPTER:ARGUMENT. `image`: of sandboxes; empty: the default."""

    source: str
    options: Mapping[str, Any]
    items: int
    episodes: int
    call_timeout_s: float
    docker: str = ""
    image: str = ""
    as_json: bool = False


def audit(request: AuditRequest) -> bool:
    """Print the figures; return whether all are within their bounds. Raises ItemError."""
    logging.configure("envs", level="WARNING")
    settings = AuditSettings(
        request.items,
        request.episodes,
        request.call_timeout_s,
        request.docker,
        request.image or Envs().docker_image,
    )
    rows = timed_rows(request.source, audit_figures(request.source, request.options, settings))
    return print_rows(rows, as_json=request.as_json)
