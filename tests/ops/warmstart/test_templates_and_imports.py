"""Warm starts with a chat template of their own, and from imported episodes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from warm_starts import options

from agentrl.checkpoints import manifest
from agentrl.core.config.sections.training import Lora
from agentrl.core.errors import ConfigError, ItemError
from agentrl.ops.warmstart import tokenizer
from agentrl.ops.warmstart.cloning_trainer import Progress
from agentrl.ops.warmstart.options import Phase
from agentrl.ops.warmstart.warmstart import warmstart


@pytest.mark.slow
def test_any_model_can_be_started_from_with_imported_episodes(
    made: tuple[Path, list[Progress]], tmp_path: Path
) -> None:
    look = {"name": "take_action", "arguments": '{"action": "look"}'}
    line = {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "tool_calls": [{"type": "function", "function": look}]},
            {"role": "tool", "content": "mug"},
            {"role": "assistant", "content": "done"},
        ]
    }
    (tmp_path / "episodes.jsonl").write_text(json.dumps(line) + "\n\n" + json.dumps(line))
    report = warmstart(
        options(
            tmp_path / "out",
            model=made[0],
            imported=tmp_path / "episodes.jsonl",
            phases=(Phase(noise={}, steps=1, checked=1),),
        )
    )
    assert report.demonstrations == 2
    assert manifest.verify(tmp_path / "out").version == 0


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 4])
def test_a_start_is_cloned_with_the_chosen_chat_template_and_keeps_it(
    made: tuple[Path, list[Progress]], tmp_path: Path, rank: int
) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{%- if messages %}{{ 'play' }}{% endif -%}" + tokenizer.TEMPLATE)
    chosen = options(
        tmp_path / "out",
        model=made[0],
        chat_template=str(own),
        lora=Lora(rank=rank),
        phases=(Phase(noise={}, steps=1, checked=1),),
        episodes=2,
    )
    warmstart(chosen)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == own.read_text()
    warmstart(replace(chosen, out=tmp_path / "other", chat_template=""))
    first, other = (tmp_path / name / "model.safetensors" for name in ("out", "other"))
    assert first.read_bytes() != other.read_bytes()
    if rank:
        shutil.rmtree(tmp_path / "out")
        warmstart(chosen)
        assert (tmp_path / "out" / "chat_template.jinja").read_text() == own.read_text()
        own.write_text(tokenizer.TEMPLATE)
        shutil.rmtree(tmp_path / "out")
        with pytest.raises(ConfigError, match="a warm start with other options"):
            warmstart(chosen)


def test_a_chat_template_that_is_not_there_is_named(tmp_path: Path) -> None:
    absent = options(tmp_path / "out", chat_template=str(tmp_path / "absent.jinja"))
    with pytest.raises(ConfigError, match=r"model\.chat_template: .*absent\.jinja"):
        warmstart(absent)


def test_imported_episodes_are_known_by_their_content_not_by_their_place(tmp_path: Path) -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    episode = json.dumps(
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    )
    first, moved = tmp_path / "first.jsonl", tmp_path / "moved.jsonl"
    first.write_text(episode)
    one = (Phase(noise={}, steps=5, checked=0),)
    small = options(tmp_path / "out", imported=first, phases=one)
    with pytest.raises(KeyboardInterrupt):
        warmstart(small, interrupt)
    first.rename(moved)
    with pytest.raises(ItemError, match=r"first\.jsonl: No such file"):
        warmstart(small)
    steps: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        warmstart(
            replace(small, imported=moved),
            interrupt,
            watch_continuation=lambda step, _: steps.append(step),
        )
    assert steps == [1]
    moved.write_text(f"{episode}\n{episode}")
    with pytest.raises(ConfigError, match="with other options"):
        warmstart(replace(small, imported=moved))
