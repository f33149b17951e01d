"""What a warm start prints while it works, with and without a terminal."""

from pathlib import Path

import pytest

from agentrl.core.config.sections.tasks import Task
from agentrl.ops.warmstart.cloning_trainer import Progress
from agentrl.ops.warmstart.command import ProgressLines
from agentrl.ops.warmstart.options import Phase, WarmstartOptions
from agentrl.ops.warmstart.warmstart import warmstart


def test_progress_is_printed_every_ten_seconds_and_after_a_measurement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = [0.0]
    lines = ProgressLines(lambda: seconds[0])
    for seconds[0], step in ((0.0, 1), (4.0, 2), (11.0, 3), (12.0, 4)):
        lines(Progress(0, step, 100, 0.5, 80.0, 120.0))
    lines(Progress(0, 5, 100, 0.25, 80.0, 120.0, {"dbbench": 0.5}))
    assert capsys.readouterr().err.splitlines() == [
        "phase 1 · step 1/100 · loss 0.500 · 80 tokens/s · 2 min left",
        "phase 1 · step 3/100 · loss 0.500 · 80 tokens/s · 2 min left",
        "phase 1 · step 5/100 · loss 0.250 · 80 tokens/s · 2 min left · "
        "sampled success on training items: dbbench 50%",
    ]


def test_expert_episodes_are_counted_every_ten_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = iter(range(0, 1000, 6))
    lines = ProgressLines(lambda: float(next(seconds)))

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    task = Task(options={"style": "compact", "items": 20, "test_items": 4})
    tasks = {"dbbench": task, "alfworld": task}
    small = WarmstartOptions(
        out=tmp_path / "out", tasks=tasks, episodes=3, phases=(Phase(noise={}, steps=1),)
    )
    with pytest.raises(KeyboardInterrupt):
        warmstart(small, stop, lines.show_preparation)
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "phase 1 · playing expert episodes of dbbench: 1 / 3"
    assert 1 < len(printed) < 3 * len(tasks)
