"""TextWorld as a peer to compare with: run by a Python that has it, it answers JSON lines.

    {"game": {…}} → {"text", "commands", "seconds"}
    {"do": command} → {"text", "commands", "reward", "done", "seconds"}

`seconds`: of TextWorld's own load and reset, or step. It leaks two to four MB a load, so the
process is to be replaced now and then. Entities are named as ALFWorld names them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any, TextIO


class Peer:
    """Plays one TextWorld environment after another."""

    def __init__(self) -> None:
        infos = import_module("textworld").EnvInfos(
            admissible_commands=True, won=True, feedback=True
        )
        self._env = import_module("textworld.envs.pddl").PddlEnv(infos)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        if "game" in request:
            self._env.load(request["game"])
            entities = self._env._entity_infos
            for entity, name in entity_names(entities).items():
                entities[entity].name = name
            state, reward, done = self._env.reset(), 0, False
        else:
            state, reward, done = self._env.step(request["do"])
        return {
            "text": state.feedback,
            "commands": state["admissible_commands"],
            "reward": reward,
            "done": done,
            "seconds": time.perf_counter() - began,
        }


def entity_names(entities: Iterable[str]) -> dict[str, str]:
    """Map ids such as `mug_bar__plus_02…` to `mug 2`; numbers fall as ids rise."""
    ids = sorted(entities)
    kinds = [
        each.split("_bar_", 1)[0] + ("basin" if "basin" in each else "") if "_bar_" in each else ""
        for each in ids
    ]
    return {
        each: f"{kind} {kinds[place:].count(kind)}" if kind else f"{each} "
        for place, (each, kind) in enumerate(zip(ids, kinds, strict=True))
    }


def serve(lines: Iterable[str], out: TextIO) -> None:
    """Answer every line of stdin."""
    peer = Peer()
    for line in lines:
        print(json.dumps(peer.answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
