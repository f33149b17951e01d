"""Questions to another program, asked of a Python that has it, as arrays in files."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def answered(python: Path, script: Path, folder: Path, asked: Arrays) -> Arrays:
    """What `script QUESTIONS ANSWERS` says of the arrays; it is run in the folder."""
    questions, said = folder / "questions.npz", folder / "said.npz"
    np.savez(questions, allow_pickle=False, **asked)
    command = [str(python), str(script), str(questions), str(said)]
    subprocess.run(command, check=True, timeout=240, cwd=folder)
    return dict(np.load(said, allow_pickle=False))
