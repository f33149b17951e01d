"""Drops the packets of one TCP port of this machine, with a rule of its firewall (iptables)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agentrl.core.errors import AgentRLError

COMMAND_S = 20.0


def can_drop() -> bool:
    """Whether this process may change the firewall: root, with iptables."""
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        return False
    try:
        _iptables("--list-rules", "INPUT")
    except AgentRLError:
        return False
    return True


@contextmanager
def drop_packets(port: int) -> Iterator[None]:
    """Nothing reaches the port or comes from it, and neither side is told. Raises AgentRLError."""
    rules = [
        ("INPUT", "--in-interface", "lo", "--protocol", "tcp", side, str(port), "--jump", "DROP")
        for side in ("--destination-port", "--source-port")
    ]
    try:
        for rule in rules:
            _iptables("--insert", *rule)
        yield
    finally:
        for rule in rules:
            with suppress(AgentRLError):  # it was not set
                _iptables("--delete", *rule)


def _iptables(*arguments: str) -> None:
    command = ["iptables", "--wait", "5", *arguments]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_S)
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", "") or str(error)).strip()
        raise AgentRLError(f"{' '.join(command)}: {detail}") from error
