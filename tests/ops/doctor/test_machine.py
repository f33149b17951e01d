from pathlib import Path

import pytest

from agentrl.ops.doctor.machine import this_machine
from agentrl.ops.doctor.memory_items import GIB, HOST


@pytest.mark.parametrize(("free", "known"), [("1024", {"cuda:0": GIB}), ("[N/A]", {})])
def test_the_memory_of_cards_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: str, known: dict[str, int]
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\necho '24576, {free}'\necho '81920, 81920'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = this_machine(tmp_path / "meminfo", tmp_path)
    assert machine.cards == {"cuda:0": 24 * GIB, "cuda:1": 80 * GIB}
    assert machine.free == known | {"cuda:1": 80 * GIB}
    assert machine.memory is None


def test_main_memory_is_limited_by_the_cgroup_whose_page_cache_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    machine = this_machine(meminfo, tmp_path)
    assert (machine.memory, machine.free) == (8 * GIB, {HOST: 6 * GIB})
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"file {2 * GIB}\ninactive_file {GIB}\n")
    machine = this_machine(meminfo, tmp_path)
    assert (machine.memory, machine.free) == (4 * GIB, {HOST: 2 * GIB})
