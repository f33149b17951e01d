"""Recorded passes: what is refused, and what passes from one policy to the next.

`test_engine.py` compares the results with plain transformers, with recorded passes as well.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch_device import DEVICE

from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.local import engine as local_engine
from agentrl.serving.local import recorded_passes
from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.local.recorded_passes import Capture, Recorders

Save = Callable[[str], Path]
Run = Callable[[], None]
PROMPTS = [list(range(3, 3 + length)) for length in (2, 9, 40)]


def repeat(run: Run) -> Run:
    return run


def fail(_run: Run) -> Run:
    raise RuntimeError("operation not permitted when stream is capturing")


def forget(_run: Run) -> Run:
    return lambda: None  # computes nothing


@contextmanager
def engine_with(capture: Capture | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    monkeypatch.setattr(recorded_passes, "SEEN", 0)
    monkeypatch.setattr(local_engine, "recorders_on", lambda _, off: Recorders(capture, off))
    engine = LocalEngine(DEVICE, max_batch=8)
    yield engine
    engine.close()


def answers(engine: LocalEngine, policy: str) -> list[Completion]:
    asked = [engine.submit(Request(policy, prompt, 12, seed=1)) for prompt in PROMPTS]
    return [each.result(timeout=60) for each in asked]


def assert_same(found: list[Completion], expected: list[Completion]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=1e-4, rtol=0)


@pytest.fixture
def plain(save_model: Save, monkeypatch: pytest.MonkeyPatch) -> list[Completion]:
    with engine_with(None, monkeypatch) as engine:
        engine.load("a", save_model("a"))
        return answers(engine, "a")


@pytest.mark.parametrize(
    "broken", [(fail, "stream is capturing"), (forget, "median |Δlogp|")], ids=["fails", "wrong"]
)
def test_what_cannot_be_recorded_or_gives_other_results_is_computed_one_by_one(
    broken: tuple[Capture, str],
    plain: list[Completion],
    save_model: Save,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capture, reason = broken
    with engine_with(capture, monkeypatch) as engine:
        engine.load("a", save_model("a"))
        assert_same(answers(engine, "a"), plain)
    assert reason in capsys.readouterr().out


def test_the_next_policy_takes_the_cache_of_an_unloaded_one_with_its_recordings(
    plain: list[Completion], save_model: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = []

    def capture(run: Run) -> Run:
        captured.append(run)
        return run

    with engine_with(capture, monkeypatch) as engine:
        engine.load("b", save_model("b"))
        answers(engine, "b")
        engine.unload("b")
        before = len(captured)
        assert before
        engine.load("unused", save_model("b"))  # the unloading is noticed between two passes
        answers(engine, "unused")
        engine.load("a", save_model("a"))
        assert_same(answers(engine, "a"), plain)
        assert len(captured) < 3 * before


def test_models_too_large_to_hold_twice_are_not_recorded(
    save_model: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_passes, "RECORDED", 1)
    with engine_with(fail, monkeypatch) as engine:
        engine.load("a", save_model("a"))
        assert len(answers(engine, "a")) == len(PROMPTS)
