"""Recorded passes: what is refused, and what passes from one policy to the next.

`test_engine.py` compares the results with plain transformers, with recorded passes as well.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch_device import DEVICE

from agentrl.core.errors import PolicyError
from agentrl.serving.engine_api import Completion, Request
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


def run_once(run: Run) -> Run:
    """Compute the pass that is captured and no later one, as a graph of another device does."""
    run()
    return lambda: None


@contextmanager
def engine_with(capture: Capture | None, largest: int = 2**30) -> Iterator[LocalEngine]:
    recorders = Recorders(capture, 0.01, unrecorded=0, largest=largest)
    engine = LocalEngine(DEVICE, max_batch=8, recorders=recorders)
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
def plain(save_model: Save) -> list[Completion]:
    with engine_with(None) as engine:
        engine.load("a", save_model("a"))
        return answers(engine, "a")


@pytest.mark.parametrize(
    "broken",
    [(fail, "stream is capturing"), (forget, "median |Δlogp|"), (run_once, "median |Δlogp|")],
    ids=["fails", "wrong", "empty"],
)
def test_what_cannot_be_recorded_or_gives_other_results_is_computed_one_by_one(
    broken: tuple[Capture, str],
    plain: list[Completion],
    save_model: Save,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capture, reason = broken
    with engine_with(capture) as engine:
        engine.load("a", save_model("a"))
        assert_same(answers(engine, "a"), plain)
    assert reason in capsys.readouterr().out


def test_the_next_policy_takes_the_cache_of_an_unloaded_one_with_its_recordings(
    plain: list[Completion], save_model: Save
) -> None:
    captured = []

    def capture(run: Run) -> Run:
        captured.append(run)
        return run

    with engine_with(capture) as engine:
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


def test_models_too_large_to_hold_twice_are_not_recorded(save_model: Save) -> None:
    with engine_with(fail, largest=1) as engine:
        engine.load("a", save_model("a"))
        assert len(answers(engine, "a")) == len(PROMPTS)


def test_policies_of_equal_shapes_and_other_configurations_have_recordings_of_their_own(
    save_model: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(save_model("a"), tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 123.0
    (other / "config.json").write_text(json.dumps(config))
    with engine_with(None) as engine:
        engine.load("other", other)
        expected = answers(engine, "other")
    with engine_with(repeat) as engine:
        engine.load("a", save_model("a"))
        assert answers(engine, "a") != expected
        engine.load("other", other)
        assert_same(answers(engine, "other"), expected)
    assert "not recorded" not in capsys.readouterr().out


def test_after_a_failure_a_policy_and_its_successor_read_nothing_of_it(
    plain: list[Completion], save_model: Save
) -> None:
    """An overflow leaves entries that are not finite, and a mask does not hide them."""
    with engine_with(repeat) as engine:
        engine.load("b", save_model("b"))
        answers(engine, "b")
        model = engine._batch("b").model
        head = model.network.get_parameter("lm_head.weight")
        kept = head.clone()
        with torch.inference_mode():
            model.cache.values.fill_(torch.inf)
            head.data.fill_(torch.inf)
        model.recorder._holds = None  # the weights are copied again
        with pytest.raises(PolicyError, match="not finite"):
            answers(engine, "b")
        head.data.copy_(kept)
        model.recorder._holds = None
        assert all(each.token_ids for each in answers(engine, "b"))
        engine.unload("b")
        engine.load("unused", save_model("b"))
        answers(engine, "unused")
        engine.load("a", save_model("a"))
        assert_same(answers(engine, "a"), plain)
