from contextlib import closing
from pathlib import Path

import pytest
from running import eventually

from agentrl.trainer.machine_use import MachineUse

NONE = ("no-such-program",)


def write(proc: Path, ticks: str) -> None:
    (proc / "stat").write_text(f"cpu  {ticks} 0 0\ncpu0 1 2 3\n")


def test_processors_are_measured_since_the_previous_reading(tmp_path: Path) -> None:
    write(tmp_path, "100 0 50 800 50 0 0 0")
    (tmp_path / "meminfo").write_text("MemTotal: 8000 kB\nMemFree: 1 kB\nMemAvailable: 2000 kB\n")
    use = MachineUse(tmp_path, NONE)
    write(tmp_path, "160 5 60 820 55 0 0 0")  # 75 of 100 more ticks were neither idle nor waiting
    assert use.read() == pytest.approx({"cpu_share": 0.75, "memory_share": 0.75})
    write(tmp_path, "160 5 60 920 55 0 0 0")
    assert use.read()["cpu_share"] == 0.0
    assert "cpu_share" not in use.read()  # no tick since then


def test_a_machine_that_says_nothing_of_itself_has_no_figures(tmp_path: Path) -> None:
    assert MachineUse(tmp_path / "none", NONE).read() == {}


def test_gpus_are_averaged_and_one_without_figures_is_left_out(tmp_path: Path) -> None:
    program = tmp_path / "smi"
    program.write_text(
        "#!/bin/sh\necho '90, 20000, 80000'\necho '30, 60000, 80000'\necho '[N/A]'\n"
    )
    program.chmod(0o755)
    with closing(MachineUse(tmp_path / "none", (str(program),), every_s=0.01)) as use:
        found: dict[str, float] = {}
        eventually(lambda: found.update(use.read()) or found, within_s=60, text=lambda: "no GPU")
    assert found == pytest.approx({"gpu_share": 0.6, "gpu_memory_share": 0.5})
