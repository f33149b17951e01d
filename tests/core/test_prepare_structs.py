"""Threads that make first use of a Struct at once crash the process: each is used before."""

import subprocess
import sys

import pytest
from running import ROOT

LOAD = """
import importlib

def load(module):
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:  # of an extra that is not installed
        assert not error.name.startswith("agentrl"), error
"""
FIND = """
import importlib, pkgutil, sys
import msgspec
from agentrl.core.prepare_structs import prepare_structs

def structs(base):
    for each in base.__subclasses__():
        yield each
        yield from structs(each)

prepared = prepare_structs()
for name in sys.argv[1:]:
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
        load(module.name)
for each in set(structs(msgspec.Struct)) - prepared:
    print(f"{each.__module__}.{each.__name__}")
"""
WORKER = """
from agentrl.broker import embedded, rabbit, events
import agentrl.ops.processes.worker
from agentrl.workers import worker
from agentrl.workers.queue import celery_app
from agentrl.envs.server import client, openenv_app
from agentrl.envs import registry
for task in registry.TASKS:
    registry.source(task, {"items": 4, "test_items": 2})
import agentrl.envs.gateway.task_source
for adapter in registry.ADAPTERS.values():
    load(adapter.partition(":")[0])
"""
POLICY_SERVER = """
import agentrl.core.journal  # a policy server decodes none of its structs
import agentrl.ops.processes.policy
from agentrl.serving.external import engine
from agentrl.serving import policy_process, scripted, server
from agentrl.serving.vllm import engine
"""
RACE = """
import sys, threading
import msgspec
from agentrl.core.prepare_structs import prepare_structs

sys.setswitchinterval(1e-6)
structs = []
for number in range(40):
    lists = [(f"b{i}", list[int] | None, None) for i in range(9)]
    inner = msgspec.defstruct(f"Inner{number}", lists)
    outer = [(f"a{i}", str | None, None) for i in range(12)] + [("z", inner | None, None)]
    structs.append(msgspec.defstruct(f"Outer{number}", outer))
assert set(structs) <= prepare_structs()
for struct in structs:
    start = threading.Barrier(8)

    def decode():
        start.wait()
        assert msgspec.json.decode(b'{"a11":"x","z":{"b7":[1]}}', type=struct).z.b7 == [1]

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def run(program: str, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr[-2000:]}"
    return ended.stdout


def test_structs_that_were_prepared_are_used_first_by_many_threads_at_once() -> None:
    run(RACE)


@pytest.mark.parametrize(
    ("imports", "packages"),
    [(WORKER, ("core", "broker", "envs", "workers")), (POLICY_SERVER, ("core", "serving"))],
    ids=["worker", "policy server"],
)
def test_every_struct_of_a_process_is_prepared_before_its_threads_begin(
    imports: str, packages: tuple[str, ...]
) -> None:
    assert run(LOAD + imports + FIND, *(f"agentrl.{package}" for package in packages)) == ""
