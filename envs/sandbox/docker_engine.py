"""Creates, finds and removes our containers on a Docker engine; nothing else does.

We attach to the main process of a container before it starts. When the owner ends for any reason,
the engine closes the process's stdin, the process ends, and the engine removes the container. If
that fails, any server of the same engine finds the container by its labels and removes it.
"""

import contextlib
import itertools
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker
import docker.errors
import requests

from agentrl.core.errors import ConfigError, EnvironmentFailure
from agentrl.core.logging import get_logger
from agentrl.envs.sandbox.container_owner import ContainerOwner
from agentrl.envs.sandbox.engine_errors import cause_text, engine_errors
from agentrl.envs.sandbox.images import Images
from agentrl.envs.sandbox.limits import INTERNAL, create_request
from agentrl.envs.sandbox.program import SandboxLimits

OWNER = "agentrl.owner"  # label: the process that made the container
RUN = "agentrl.run"  # label: the name of its run
LEASE = "agentrl.lease"  # label: engine object and number; a container has one all its life
TIMEOUT_S = 60.0
ASK_S = 5.0
CONNECTIONS = 64
REMOVERS = 16  # threads that remove many containers
REMOVAL_S = 5  # of a container that the engine is removing already
REASON_S = 2.0  # after a container's end, to be told that memory was the reason
KILLED = "137"  # how a container ends that SIGKILL ended
CONFLICT = 409  # of a removal that is on its way already, and of a name that is taken
INCLUSIVE = ("btrfs", "zfs")  # storage drivers that count the image in a container's size

log = get_logger()


class Engine:
    """One engine; thread-safe. `run`: a label on all containers.

    `quota`: whether it can limit a container's disk; None: not known yet.
    """

    def __init__(
        self,
        run: str,
        url: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        ask_s: float = ASK_S,
    ) -> None:
        """`url`: the engine's address; empty: DOCKER_HOST. Raises ConfigError.

        `timeout_s`: of one request. `ask_s`: of one query about a container.
        """
        self.owner = ContainerOwner.this()
        self.quota: bool | None = None
        self._ask_s = ask_s
        self._labels = {OWNER: str(self.owner), RUN: run}
        self._token = uuid.uuid4().hex[:12]
        self._numbers = itertools.count(1)
        self._live: set[str] = set()  # leases; one is here before the engine is asked for it
        self._leases: dict[str, str] = {}  # of containers
        self._url = url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        arguments = docker.utils.kwargs_from_env() | {"base_url": self._url}
        try:
            self._api = docker.APIClient(**arguments, timeout=timeout_s, max_pool_size=CONNECTIONS)
            self._api.ping()
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise ConfigError(
                f"no Docker engine answers at {self._url}: {cause_text(error)}",
                hint="start Docker, or export DOCKER_HOST=…",
            ) from error
        self.images = Images(self._api, self._url)

    def create(self, image: str, argv: Sequence[str], limits: SandboxLimits) -> str:
        """Create a container; return its id. Raises EnvironmentFailure."""
        lease = f"{self._token}.{next(self._numbers)}"
        self._live.add(lease)
        try:
            container = self._create(image, argv, limits, self._labels | {LEASE: lease})
        except BaseException:
            self._live.discard(lease)
            raise
        self._leases[container] = lease
        return container

    def start(self, container: str) -> socket.socket:
        """Attach to the container's main process, then start it. Raises EnvironmentFailure."""
        streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        with engine_errors("start"):
            stream = self._api.attach_socket(container, params=streams)
            # A descriptor of our own: closing the SDK's response ends its part, not the connection.
            connection = socket.socket(fileno=os.dup(stream.fileno()))
            stream._response.close()  # noqa: SLF001
            stream.close()
        try:
            with engine_errors("start"):
                self._api.start(container)
        except EnvironmentFailure:
            connection.close()
            raise
        return connection

    def put(self, container: str, folder: str, archive: bytes) -> None:
        """Unpack a tar archive in a folder of its root. Raises EnvironmentFailure."""
        with engine_errors("copy"):
            self._api.put_archive(container, folder, archive)

    def set_network(self, container: str, *, connected: bool) -> None:
        """Connect it to the engine's bridge, or disconnect it. Raises EnvironmentFailure."""
        networks = ("none", "bridge") if connected else ("bridge", "none")
        with engine_errors("network"):
            self._api.disconnect_container_from_network(container, networks[0])
            self._api.connect_container_to_network(container, networks[1])

    def running(self, container: str) -> bool:
        """Return whether it runs and is not paused. Raises EnvironmentFailure without an answer."""
        state: Mapping[str, Any] = self._inspect(container).get("State", {})
        return state.get("Running", False) and not state.get("Paused", False)

    def disk_used(self, container: str) -> int:
        """Return the bytes of the files in its root; 0 if it is gone.

        Raises EnvironmentFailure, also if there are too many files to count in time.
        """
        return self._inspect(container, size=1).get("SizeRw") or 0

    def out_of_memory(self, container: str) -> bool:
        """Return whether the kernel ended one of its processes for this; False if unknown.

        The engine may learn the reason for a SIGKILL only after the end.
        """
        filters = {"container": container, "event": ["oom", "die"]}
        until = f"{time.time() + REASON_S:.9f}"
        with contextlib.suppress(EnvironmentFailure), engine_errors("events"):
            events = self._api.events(since=1, until=until, filters=filters, decode=True)
            with contextlib.closing(events):
                for event in events:
                    if event["Action"] == "oom":
                        return True
                    if event["Actor"]["Attributes"].get("exitCode") != KILLED:
                        return False
        return False

    def remove(self, container: str) -> None:
        """Kill and remove it; return when it is gone. Raises EnvironmentFailure.

        Its lease ends in any case: what remains is removed by `reap`.
        """
        self.forget(container)
        with engine_errors("remove"):
            try:
                self._api.remove_container(container, force=True, v=True)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError as error:
                if error.status_code != CONFLICT:
                    raise
                self._await_removal(container)

    def forget(self, container: str) -> None:
        """End its lease, so that the next `reap` removes it."""
        self._live.discard(self._leases.pop(container, ""))

    def reap(self) -> int:
        """Remove containers without a live lease; return their number. Raises EnvironmentFailure.

        These are containers of dead owners, and our own containers without a lease.
        """
        with engine_errors("list containers"):
            listed = self._api.containers(all=True, filters={"label": OWNER})
        orphans = [each["Id"] for each in listed if self._is_orphan(each["Labels"])]
        if not orphans:
            return 0
        with ThreadPoolExecutor(REMOVERS) as threads:
            count = sum(threads.map(self._reap_container, orphans))
        log.info("Containers without a lease removed", count=count)
        return count

    def close(self) -> None:
        self._api.close()

    def _create(
        self, image: str, argv: Sequence[str], limits: SandboxLimits, labels: Mapping[str, str]
    ) -> str:
        """Create it, with a disk quota if the engine supports one; remember a first refusal."""

        def create(quota: int) -> str:
            request = create_request(argv, limits, self._api.api_version, quota)
            answer: Mapping[str, Any] = self._api.create_container(
                image, labels=dict(labels), **request
            )
            return str(answer["Id"])

        with engine_errors("create"):
            if limits.network == "internal":
                self._provide_internal_network()
            if limits.disk_bytes and self.quota is not False:
                try:
                    container = create(self._quota(image, limits.disk_bytes))
                except docker.errors.APIError as error:
                    if "storage-opt" not in str(error.explanation):
                        raise
                    self.quota = False
                else:
                    self.quota = True
                    return container
            return create(0)

    def _provide_internal_network(self) -> None:
        """Create it unless it is there; its containers cannot reach each other."""
        if self._api.networks(names=[f"^{INTERNAL}$"]):
            return
        separate = {"com.docker.network.bridge.enable_icc": "false"}
        try:
            self._api.create_network(
                INTERNAL, "bridge", separate, check_duplicate=True, internal=True
            )
        except docker.errors.APIError as error:
            if error.status_code != CONFLICT:  # somebody else created it meanwhile
                raise

    def _quota(self, image: str, disk_bytes: int) -> int:
        """Return the quota that leaves a container of this image `disk_bytes`."""
        info: Mapping[str, Any] = self._api.info()
        if info.get("Driver") not in INCLUSIVE:
            return disk_bytes
        return disk_bytes + int(self._api.inspect_image(image)["Size"])

    def _inspect(self, container: str, **parameters: int) -> Mapping[str, Any]:
        """Return the engine's data on it; empty if it is gone. Raises EnvironmentFailure."""
        url = f"{self._api.base_url}/v{self._api.api_version}/containers/{container}/json"
        with engine_errors("inspect"):
            answer = self._api.get(url, params=parameters, timeout=self._ask_s)
            if answer.status_code == requests.codes.not_found:
                return {}
            answer.raise_for_status()
            data: Mapping[str, Any] = answer.json()
        return data

    def _is_orphan(self, labels: Mapping[str, str]) -> bool:
        owner, lease = ContainerOwner.parse(labels[OWNER]), labels.get(LEASE, "")
        if owner == self.owner:
            return lease.startswith(f"{self._token}.") and lease not in self._live
        return owner is not None and owner.gone()

    def _reap_container(self, container: str) -> bool:
        """Remove one container; a failure does not prevent the removal of others."""
        try:
            self.remove(container)
        except EnvironmentFailure as error:
            log.warning("Container not removed", container=container, error=str(error))
            return False
        return True

    def _await_removal(self, container: str) -> None:
        deadline = time.monotonic() + REMOVAL_S
        with contextlib.suppress(docker.errors.NotFound):
            while time.monotonic() < deadline:  # waiting for "removed" misses what just was
                self._api.inspect_container(container)
                time.sleep(0.02)
