"""Drops the packets of one TCP port of this machine, with a rule of its firewall (iptables).

A shell holds the rule for as long as its standard input is open, so the rule goes with its owner.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.core.errors import AgentRLError

END_S = 30.0  # for the shell to remove the rules
HOLD = """
trap '' INT TERM
change() { iptables --wait 5 "$1" INPUT --in-interface lo --protocol tcp "$2" "$3" --jump DROP; }
{ change --insert --destination-port "$1" && change --insert --source-port "$1" && echo set
} || exec >&-  # the owner waits for no more
read -r _
change --delete --destination-port "$1"
change --delete --source-port "$1"
"""


def can_drop() -> bool:
    """Return whether this process may change the firewall: it is root, and has iptables."""
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        return False
    listed = subprocess.run(
        ["iptables", "--list-rules", "INPUT"], capture_output=True, check=False, timeout=END_S
    )
    return listed.returncode == 0


@contextmanager
def drop_packets(port: int) -> Iterator[None]:
    """Drop every packet to and from the port, without a reset. Raises AgentRLError."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", HOLD, "sh", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None  # noqa: S101 - a pipe
    try:
        if not shell.stdout.readline():
            raise AgentRLError(f"iptables: {shell.communicate(timeout=END_S)[1].strip()}")
        yield
    finally:
        shell.communicate(timeout=END_S)
