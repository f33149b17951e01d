"""Asks another program, through a Python that has it; arrays travel as files."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
ROWS, WIDTH, GROUP = 24, 17, 4


def run_reference(python: Path, script: Path, folder: Path, asked: Arrays) -> Arrays:
    """Run `script QUESTIONS ANSWERS` in the folder; return the arrays that it answers."""
    questions, said = folder / "questions.npz", folder / "said.npz"
    np.savez(questions, allow_pickle=False, **asked)
    command = [str(python), str(script), str(questions), str(said)]
    subprocess.run(command, check=True, timeout=240, cwd=folder)
    return dict(np.load(said, allow_pickle=False))


def random_rows(seed: int, moved: float) -> dict[str, NDArray[Any]]:
    """[B, T] tokens of rows of any length, with observations inside; [B] rewards of groups.

    `moved`: deviation of the current policy's log-probabilities from the old one's.
    """
    random = np.random.default_rng(seed)
    lengths = random.integers(0, WIDTH + 1, ROWS)
    lengths[0] = WIDTH
    holes = random.random((ROWS, WIDTH)) < 0.8
    old = random.uniform(-4.0, -0.1, (ROWS, WIDTH))
    return {
        "old": old,
        "current": old + random.normal(0.0, moved, old.shape),
        "behaviour": old + random.normal(0.0, 0.7, old.shape),
        "reference": old + random.normal(0.0, 0.5, old.shape),
        "advantages": random.normal(0.0, 1.0, (ROWS, 1)) * np.ones((1, WIDTH)),
        "mask": (np.arange(WIDTH) < lengths[:, None]) & holes,
        "rewards": random.choice([0.0, 0.3, 1.0], ROWS),
    }
