from pathlib import Path

import pytest

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model, PolicyServer, Vllm
from agentrl.ops.doctor.machine import this_machine
from agentrl.ops.doctor.memory_items import (
    GIB,
    HOST,
    name_cards,
    shares_trainer_card,
    vllm_devices,
)

UUIDS = ("GPU-1a2b-00", "GPU-1a9c-00", "GPU-77aa-00")
SIZES = (24 * GIB, 80 * GIB, 48 * GIB)
CARDS = list(zip("012", UUIDS, strict=True))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three cards in the order of the PCI bus; the driver knows the free memory of two."""
    program = tmp_path / "nvidia-smi"
    rows = zip(CARDS, ("24576, 1024", "81920, 81920", "49152, [N/A]"), strict=True)
    lines = "".join(f"echo '{index}, {uuid}, {sizes}'\n" for (index, uuid), sizes in rows)
    program.write_text(f"#!/bin/sh\n{lines}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return program


def test_the_memory_of_cards_is_read(driver: Path) -> None:
    machine = this_machine(driver.parent / "meminfo", driver.parent)
    assert machine.cards == dict(zip(("cuda:0", "cuda:1", "cuda:2"), SIZES, strict=True))
    assert machine.free == {"cuda:0": GIB, "cuda:1": 80 * GIB}
    assert machine.memory is None


@pytest.mark.parametrize(
    ("shown", "names"),
    [
        ("2,0", ("cuda:1", "GPU 1", "cuda:0")),
        ("GPU-77, GPU-1a9c", ("GPU 0", "cuda:1", "cuda:0")),
        ("MIG-5f, 1", ("GPU 0", "cuda:1", "GPU 2")),
        ("0,9,1", ("cuda:0", "GPU 1", "GPU 2")),
        ("", ("GPU 0", "GPU 1", "GPU 2")),
    ],
)
def test_cards_have_the_numbers_that_torch_gives_to_the_visible_ones(
    driver: Path, monkeypatch: pytest.MonkeyPatch, shown: str, names: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    machine = this_machine(driver.parent / "meminfo", driver.parent)
    assert machine.cards == dict(zip(names, SIZES, strict=True))
    assert machine.free == {names[0]: GIB, names[1]: 80 * GIB}


@pytest.mark.parametrize(
    ("ours", "of_vllm", "device"),
    [
        (None, "2", "cuda:2"),
        (None, "GPU-1a9c", "cuda:1"),
        ("2,1", "1", "cuda:1"),
        ("2,1", "2", "cuda:0"),
        ("2,1", UUIDS[2], "cuda:0"),
        ("GPU-77", "2", "cuda:0"),
        ("2,1", "0", "GPU 0"),
        ("2,1", "9", "GPU 9"),
        ("2,1", None, "cuda:0"),
        ("MIG-5f", "MIG-5f", "cuda:0"),
    ],
)
def test_vllm_has_a_card_by_the_name_that_the_trainer_has_for_it(
    ours: str | None, of_vllm: str | None, device: str
) -> None:
    env = {} if of_vllm is None else {"CUDA_VISIBLE_DEVICES": of_vllm}
    server = PolicyServer(name="p", engine="vllm", vllm=Vllm(env=env))
    config = Config(tasks={}, model=Model(device="cuda"), policy=(server,))
    names = name_cards(CARDS, ours)
    assert vllm_devices(config, server, names) == [device]
    assert shares_trainer_card(config, server, names) == (device == "cuda:0")


def test_without_a_driver_the_visible_cards_still_have_their_numbers() -> None:
    assert name_cards([], "5, 3") == {"5": "cuda:0", "3": "cuda:1"}
    assert name_cards([], None) == {}


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
