"""Engines on the fake vLLM, with a store and a follower."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoint_rows import begin
from running import eventually, fakes_of
from vllm_bench import VllmBench, vllm_config

from agentrl.db.store import open_store


@pytest.fixture
def start(
    tmp_path: Path, migrated_sqlite: Path, save_model: Callable[[str], Path]
) -> Iterator[Callable[..., VllmBench]]:
    """Start a bench; all fakes that it launched have ended at the end of the test."""
    benches: list[VllmBench] = []
    shutil.copy(migrated_sqlite, tmp_path / "store.db")
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    begin(store, "server", "vllm")

    def start_bench(**options: object) -> VllmBench:
        config = vllm_config(tmp_path, **options)  # type: ignore[arg-type]
        bench = VllmBench(tmp_path, store, save_model("a"), config)
        benches.append(bench)
        return bench

    yield start_bench
    for bench in benches:
        bench.engine.close()
    store.close()
    eventually(lambda: not fakes_of(tmp_path), within_s=60, text=lambda: "a fake was left")
