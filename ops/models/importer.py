"""`agentrl model import`: weights and tokenizer ─▶ a chat template that shows tools ─▶ card."""

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from agentrl.checkpoints import manifest
from agentrl.checkpoints.directories import write_directory
from agentrl.core.config.sections.base import Dtype
from agentrl.core.errors import ConfigError
from agentrl.ops.configuration import model_spec
from agentrl.ops.models import hub
from agentrl.ops.models import model_source as sources
from agentrl.ops.models.model_source import ModelSource
from agentrl.workers.conversation.template import TEMPLATE, ChatTemplate

SUPPLIED = "tools_chatml.jinja"
"""ChatML turns, with tools and calls as Qwen writes them: for models whose own leaves tools out."""

_CHATML = ("<|im_start|>", "<|im_end|>")


def import_model(source: str, out: Path, *, dtype: Dtype, chat_template: Path | None) -> str:
    """Create the directory `out` for `model.path`, and return its card.

    `dtype`: of converted weights; those of a transformers directory are copied unchanged.
    `chat_template`: a file that replaces the model's template. Raises ConfigError if the model has
    no usable template, and CheckpointError if `out` exists or cannot be written.
    """
    model = sources.resolve(source)
    with write_directory(out) as partial:
        if model.is_gguf:
            _convert(model, partial, dtype)
        else:
            _copy(model, partial)
        note = _supply_template(partial, chat_template)
        card = _card(model, partial, note, out)
        (partial / hub.CARD).write_text(card, "utf-8")
        for path in partial.iterdir():
            path.chmod(0o644)
    return card


def _convert(model: ModelSource, out: Path, dtype: Dtype) -> None:
    import torch

    from agentrl.trainer.model.files.convert_gguf import convert_gguf

    convert_gguf(model.path, out, getattr(torch, dtype))


def _copy(model: ModelSource, out: Path) -> None:
    """Copy the files that transformers reads.

    Raises ConfigError without weights as safetensors or without a tokenizer.
    """
    if absent := hub.absent_weights(model.path):
        raise ConfigError(
            f"{model.name}: {', '.join(absent[:3])} is missing",
            hint="save the model with safe_serialization=True",
        )
    if not (model.path / "tokenizer.json").is_file():
        raise ConfigError(
            f"{model.name}: tokenizer.json is missing",
            hint="save a fast tokenizer there with its `save_pretrained`",
        )
    for pattern in (*hub.DESCRIPTION, hub.WEIGHTS, *hub.weight_names(model.path)):
        for path in model.path.glob(pattern):
            shutil.copyfile(path, out / path.name)


def _supply_template(directory: Path, named: Path | None) -> str:
    """Supply a chat template that shows tools, and return which one it is."""
    if named is not None:
        ChatTemplate.load(directory, str(named)).check_append_only()
        shutil.copyfile(named, directory / TEMPLATE)
        return f"the file {named.name}"
    try:
        template = ChatTemplate.load(directory)
        template.check_append_only()
        template.check_shows_tools()
        return "the model's own"
    except ConfigError as error:
        reason = str(error).removeprefix(f"{directory}: ")
    tokenizer = (directory / "tokenizer.json").read_text("utf-8")
    if not all(token in tokenizer for token in _CHATML):
        raise ConfigError(
            f"{reason}, and the tokenizer lacks the tokens of our ChatML template",
            hint="pass --chat-template FILE",
        )
    text = files("agentrl.ops.models").joinpath(SUPPLIED).read_text("utf-8")
    (directory / TEMPLATE).write_text(text, "utf-8")
    supplied = ChatTemplate.load(directory)
    supplied.check_append_only()
    supplied.check_shows_tools()
    return f"supplied, because of the model's own: {reason}"


def _card(model: ModelSource, directory: Path, template: str, out: Path) -> str:
    """Return the card: contents, source, and the configuration for the directory."""
    parameters = model_spec.read_spec(directory).parameters
    style = ChatTemplate.load(directory).call_style() or "json"
    weights = manifest.digests(directory)
    dtype = _dtype(directory)
    lines = [
        f"# {out.name}",
        "",
        "| | |",
        "|---|---|",
        f"| source | `{model.name}` |",
        f"| licence | {model.license} |",
        f"| quantisation | {_quantisation(model)} |",
        f"| parameters | {parameters:,}, {dtype} |",
        f"| chat template | {template} |",
        *(f"| `{name}` | sha256 `{weights[name]}` |" for name in sorted(weights)),
        "",
        "```toml",
        "[model]",
        f'path = "{out}"',
        f'call_style = "{style}"',
        f'dtype = "{"bfloat16" if dtype == "bfloat16" else "float32"}"',
        "```",
    ]
    return "\n".join(lines) + "\n"


def _quantisation(model: ModelSource) -> str:
    if not model.is_gguf:
        return "none"
    return f"{model.path.name}: weights were quantised, and de-quantised when they were read"


def _dtype(directory: Path) -> str:
    """Return the dtype of the stored weights from config.json."""
    config = msgspec.json.decode((directory / "config.json").read_bytes(), type=dict[str, Any])
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")
