"""Counts model tokens that were sampled in vain: what policy servers sampled, less what is kept."""

import contextlib
import json
import urllib.request
from collections.abc import Mapping

ANSWER_S = 1.0  # for a policy server to answer


class SampledTokens:
    """What policy servers say that they sampled; servers that ended count with their last word."""

    def __init__(self) -> None:
        self._by_server: dict[str, int] = {}

    def look(self, servers: Mapping[str, tuple[str, str]]) -> int:
        """Ask the servers, by name (server_id, url); return the tokens sampled by all so far."""
        for server_id, url in servers.values():
            with (
                contextlib.suppress(OSError, ValueError, KeyError),
                urllib.request.urlopen(f"{url}/health", timeout=ANSWER_S) as answer,  # noqa: S310 - a server of ours
            ):
                self._by_server[server_id] = int(json.load(answer)["sampled_tokens"])
        return sum(self._by_server.values())
