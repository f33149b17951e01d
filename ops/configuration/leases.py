"""Checks that each lease of a configuration outlives the time between two renewals."""

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError

RENEWALS = 2  # in one lease, so that a late or a failed renewal does not end it


def check_leases(config: Config) -> None:
    """Check the leases of dispatcher, worker and policy servers. Raises ConfigError."""
    dispatch, worker = config.dispatch, config.worker
    _check_lease("dispatch", dispatch.lease_s, "tick_s", dispatch.tick_s)
    _check_lease("worker", worker.lease_s, "beat_s", worker.beat_s)
    for server in config.policy_servers():
        _check_lease("policy", server.lease_s, "beat_s", server.beat_s, f" of {server.name}")


def _check_lease(section: str, lease_s: float, key: str, every_s: float, whose: str = "") -> None:
    """Check one lease. `key`: the key that sets the time between renewals, `every_s` seconds."""
    least = RENEWALS * every_s
    if lease_s < least:
        raise ConfigError(
            f"{section}.lease_s{whose}: {lease_s:g} is less than {RENEWALS} * {key} = {least:g}, "
            "so it can end while its holder lives",
            hint=f"set lease_s to at least {least:g}, or {key} to at most {lease_s / RENEWALS:g}",
        )
