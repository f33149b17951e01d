"""The limits of a sandbox, in the form that the Docker engine takes."""

from collections.abc import Sequence
from typing import Any

from docker.types import HostConfig, LogConfig, Ulimit

from agentrl.envs.sandbox.program import SandboxLimits

NOBODY = "65534:65534"
INTERNAL = "agentrl-internal"  # a network without a way out, shared by all runs of an engine
OPEN_FILES = 4096  # of one process of nobody's; root has what the engine gives its containers
MASKED = (  # by every engine of itself; who names any has to name them
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys"),
    *("/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list"),
    *("/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware"),
)
UNREADABLE = (  # of PID 1, which nobody may inspect: empty instead, or `find /` would fail
    *("/proc/1/fdinfo", "/proc/1/map_files", "/proc/1/task/1/fdinfo"),
)
FILE_SHARE = 2  # one file may fill one part in so many of the disk


def create_request(
    argv: Sequence[str], limits: SandboxLimits, version: str, quota: int
) -> dict[str, Any]:
    """Return arguments of `create_container`. `version`: of the engine's API.

    `quota`: limit in bytes of the container's root, enforced by the engine; 0: none.
    """
    return {
        "entrypoint": list(argv[:1]),  # the image's own would come before, and write among answers
        "command": list(argv[1:]),
        "stdin_open": True,
        "user": "0:0" if limits.root else NOBODY,
        "working_dir": "/root" if limits.root else "/tmp",  # noqa: S108
        "host_config": _host(limits, version, quota),
    }


def _host(limits: SandboxLimits, version: str, quota: int) -> HostConfig:
    """Return the host configuration.

    The size of a file is limited even with a quota, because three files, such as /etc/hosts, are
    outside it.
    """
    ulimits = [_fixed_limit("core", 0)]
    if not limits.root:
        ulimits.append(_fixed_limit("nofile", OPEN_FILES))
    if limits.disk_bytes:
        ulimits.append(_fixed_limit("fsize", limits.disk_bytes // FILE_SHARE))
    in_memory = f"rw,noexec,nosuid,nodev,size={limits.tmpfs_bytes}"
    host = HostConfig(
        version=version,
        network_mode=INTERNAL if limits.network == "internal" else limits.network,
        ipc_mode="private" if limits.root else "none",  # none: no /dev/shm to write to
        cap_drop=["ALL"],
        cap_add=list(limits.capabilities),
        security_opt=["no-new-privileges"],
        read_only=not limits.disk_bytes,
        storage_opt={"size": str(quota)} if quota else None,
        tmpfs={"/tmp": in_memory} if limits.tmpfs_bytes else None,  # noqa: S108
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        nano_cpus=int(limits.cpus * 1e9),
        pids_limit=limits.pids,
        ulimits=ulimits,
        init=not limits.root,
        auto_remove=True,
        log_config=LogConfig(type="none"),
    )
    if limits.root:
        host["MaskedPaths"] = [*MASKED, *UNREADABLE]
    return host


def _fixed_limit(name: str, value: int) -> Ulimit:
    return Ulimit(name=name, soft=value, hard=value)
