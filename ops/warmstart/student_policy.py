"""The student policy of a warm start: weights, tokenizer, template, engine."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from agentrl.core.config.sections.base import Dtype
from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.tasks import Task
from agentrl.envs.contract import TaskSource
from agentrl.envs.item_choice import sample_items
from agentrl.ops.warmstart import demonstrations, play, tokenizer
from agentrl.ops.warmstart.demonstrations import Transcript
from agentrl.ops.warmstart.play import Player
from agentrl.serving.local.engine import LocalEngine
from agentrl.trainer.model import cloning
from agentrl.trainer.model.cloning import Demonstration
from agentrl.trainer.model.files.loading import copy_tokenizer, save_as
from agentrl.trainer.model.trainable_model import (
    AdapterModel,
    tensors_to_save,
    trainable_parameters,
)
from agentrl.workers.conversation.template import ChatTemplate, replace_template
from agentrl.workers.conversation.toolcalls import Style

ATTEMPTS = 8
VOCABULARY = 768
SHAPE: Mapping[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "initializer_range": 0.03,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
}


@dataclass(frozen=True, slots=True)
class Skill:
    """Success on `items` held-out items: `sampled`, `pass_at_8` at temperature 1, `greedy` at 0."""

    items: int
    sampled: float
    pass_at_8: float
    greedy: float


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """`base`: directory of the tokenizer. `chat_template`: a file that replaces its template."""

    base: Path
    style: Style
    chat_template: str = ""


class StudentPolicy:
    """`scratch`: where it is saved for playing.

    `model`: of transformers, or one with an adapter, which alone is trained. `dtype`: of the
    weights that are saved and played; training uses float32. It plays on the model's device.
    """

    def __init__(
        self, model: Any, chat: ChatFormat, scratch: Path, dtype: Dtype = "float32"
    ) -> None:
        """Raises ConfigError if the template cannot render tool turns."""
        self._adapter = model if isinstance(model, AdapterModel) else None
        self.model = model.model if isinstance(model, AdapterModel) else model
        self.template = ChatTemplate.load(chat.base, chat.chat_template)
        self.template.check_append_only()
        self._chat = chat
        self._scratch = scratch
        self.style = chat.style
        self._dtype = dtype
        self._engine = LocalEngine(str(self.model.device), dtype)
        self._saved = 0

    @classmethod
    def new(
        cls, texts: Sequence[str], scratch: Path, style: Style, seed: int, dtype: Dtype = "float32"
    ) -> "StudentPolicy":
        """Create a tiny Qwen3 with random weights and a tokenizer of the words in `texts`."""
        base = scratch / "base"
        base.mkdir()
        tokenizer.save(tokenizer.train(texts, VOCABULARY), base)
        template = ChatTemplate.load(base)
        shape = {
            **SHAPE,
            "vocab_size": template.vocab_size,
            "eos_token_id": template.end_id,
            "pad_token_id": template.tokenizer.token_to_id(tokenizer.PAD),
        }
        return cls(cloning.new_model(shape, seed), ChatFormat(base, style), scratch, dtype)

    @property
    def parameters(self) -> int:
        """Return the number of weights, of the model without an adapter."""
        kept = {id(w) for w in trainable_parameters(self.model).values()} if self.is_adapter else ()
        return sum(w.numel() for w in self.model.parameters() if id(w) not in kept)

    @property
    def is_adapter(self) -> bool:
        """Return whether only an adapter is trained."""
        return self._adapter is not None

    def save(self, directory: Path) -> None:
        """Write a directory that transformers, or of an adapter peft, can load, in its dtype."""
        if self._adapter is not None:
            directory.mkdir(exist_ok=True)
            trained = trainable_parameters(self.model)
            self._adapter.save(directory, tensors_to_save(trained, getattr(torch, self._dtype)))
        else:
            save_as(self.model, directory, self._dtype)
            copy_tokenizer(self._chat.base, directory)
        replace_template(directory, self._chat.chat_template)

    def encode(self, transcripts: Sequence[Transcript]) -> list[Demonstration]:
        """Tokenize transcripts, each branch by itself."""
        encoded = (demonstrations.encode(each, self.template, self.style) for each in transcripts)
        return [branch for branches in encoded for branch in branches]

    def success(self, source: TaskSource, task: Task, items: int, sampling: Sampling) -> float:
        """Return sampled success on training items. `sampling`: its limits of tokens apply."""
        with self._playing(sampling, 1.0) as player:
            some = sample_items(source.items(task.split), items)
            return play.success(play.scores(player, source, some, task.max_turns, seed=0))

    def skill(self, source: TaskSource, task: Task, items: int, sampling: Sampling) -> Skill:
        """Return the skill on held-out items. `sampling`: its limits of tokens apply."""
        held_out = sample_items(source.items(task.eval_split), items)
        many = [item for item in held_out for _ in range(ATTEMPTS)]
        with self._playing(sampling, 1.0) as player:
            sampled = play.scores(player, source, many, task.max_turns, seed=1)
        with self._playing(sampling, 0.0) as player:
            greedy = play.scores(player, source, held_out, task.max_turns, seed=1)
        return Skill(
            len(held_out),
            play.success(sampled),
            play.pass_at(sampled, ATTEMPTS),
            play.success(greedy),
        )

    def close(self) -> None:
        self._engine.close()

    @contextmanager
    def _playing(self, sampling: Sampling, temperature: float) -> Iterator[Player]:
        """Load the current weights into the engine as a policy."""
        self._saved += 1
        name = f"step-{self._saved}"
        self.save(self._scratch / name)
        self._engine.load(name, self._scratch / name)
        try:
            chosen = msgspec.structs.replace(sampling, temperature=temperature)
            yield Player(self._engine, name, self.template, self.style, chosen)
        finally:
            self._engine.unload(name)
            shutil.rmtree(self._scratch / name)
