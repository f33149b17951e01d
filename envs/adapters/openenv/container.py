"""A container of an OpenEnv image: the env server starts it, and asks its server over a network
that leads nowhere else."""

from dataclasses import replace

import msgspec

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.sandbox.program import OS, ImageBuild, python_program
from agentrl.envs.sandbox.sandbox import Sandboxes, SandboxLease, Spec

GRACE_S = 10.0  # beyond the server's own time to start
REUSE = 1000  # episodes of one container


class _Address(msgspec.Struct, frozen=True):
    address: str
    error: str


def container_spec(image: str, memory_mb: int) -> Spec:
    """Return the kind of container that an image needs; one serves an episode at a time."""
    program = python_program("agentrl.envs.adapters.openenv.container_main", ())
    limits = replace(OS, network="internal", memory_bytes=memory_mb << 20)
    return Spec(image, program, limits, reuse=REUSE, spares=0, build=ImageBuild(None))


class ServerContainer:
    """Leases a container until it is released. Raises EnvironmentFailure, with the last line that
    the server wrote to its standard error."""

    def __init__(self, pool: Sandboxes, port: int, start_s: float) -> None:
        """`start_s`: seconds that the server may take until it listens on the port."""
        self._lease = SandboxLease(pool, "openenv")
        try:
            image = pool.image_settings()
            if not image.command:
                raise EnvironmentFailure("openenv: the image has no CMD that starts a server")
            request = {
                "argv": image.command,
                "folder": image.folder or "/",
                "port": port,
                "timeout_s": start_s,
            }
            found = self._lease.ask(request, start_s + GRACE_S, _Address)
            if found.error:
                raise EnvironmentFailure(f"openenv: the image's server: {found.error}")
        except BaseException:
            self._lease.release(sound=False)
            raise
        self.url = f"http://{found.address}:{port}"

    def release(self, *, sound: bool) -> None:
        """Give it back for another episode, or remove it if it is not `sound`."""
        self._lease.release(sound=sound)
