"""Lucene as a peer: Anserini's analyser and searcher in a Java program, for comparisons only."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROGRAM = Path(__file__).with_name("Lucene.java")


def tokens(jar: Path, texts: Sequence[str]) -> list[list[str]]:
    """The index terms of each text, a line each. Raises OSError, SubprocessError."""
    return _run(jar, "tokens", texts)


def search(
    jar: Path, documents: Sequence[tuple[str, str]], queries: Sequence[str]
) -> list[list[tuple[str, float]]]:
    """Of each query, the 50 best ids and their scores. Raises OSError, SubprocessError."""
    lines = [f"{name}\t{' '.join(text.split())}" for name, text in documents]
    return [
        [(name, float(score)) for name, _, score in (hit.partition(" ") for hit in hits)]
        for hits in _run(jar, "search", lines, queries)
    ]


def _run(jar: Path, verb: str, *files: Sequence[str]) -> list[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(place) for place in range(len(files))]
        for path, lines in zip(paths, files, strict=True):
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = ["java", "-cp", str(jar), str(PROGRAM), verb, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, check=True)
    return [line.split("\t") if line else [] for line in done.stdout.decode().split("\n")[:-1]]
