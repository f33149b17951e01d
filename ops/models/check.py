"""`agentrl model check`: checks whether a model can be served and trained, and its memory use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import structs

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.training import Lora
from agentrl.core.errors import CheckpointError, ConfigError, PolicyError
from agentrl.envs.contract import ToolCall, strings
from agentrl.ops.configuration import model_spec
from agentrl.ops.doctor import memory
from agentrl.ops.doctor.findings import Finding, try_finding
from agentrl.ops.doctor.machine import this_machine
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style, parse

TOOL = strings("look", "Look at a thing.", "thing")


def check_model(path: Path, chat_template: str = "") -> Iterator[Finding]:
    """Yield one finding for each requirement on the model in `path`."""
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"{path} is not a transformers directory", hint="make one with `agentrl model import`"
        )
    yield try_finding("weights", lambda: _describe_weights(path))
    yield _local_engine(path)
    yield from _template(path, chat_template)
    yield try_finding("bfloat16", lambda: _measure_noise(path))
    yield from _memory(path)


def _describe_weights(path: Path) -> str:
    import torch

    from agentrl.trainer.model.files.loading import load_model

    model = load_model(path, torch.device("cpu"), torch.bfloat16)
    parameters = sum(weight.numel() for weight in model.parameters())
    return f"{type(model).__name__}, {parameters:,} parameters"


def _local_engine(path: Path) -> Finding:
    """Check whether the local engine serves the model; vLLM serves others, too."""
    import torch

    from agentrl.serving.local.served_model import load_model

    try:
        limits = load_model(path, "cpu", torch.bfloat16).limits
    except (CheckpointError, PolicyError) as error:
        return Finding("local engine", "absent", str(error), 'set policy.engine = "vllm"')
    return Finding("local engine", "ok", f"serves conversations of {limits.context:,} tokens")


def _template(path: Path, named: str) -> Iterator[Finding]:
    """Check the chat template and its style of tool calls."""
    try:
        template = ChatTemplate.load(path, named)
    except ConfigError as error:
        yield Finding("chat template", "missing", str(error), error.hint)
        return

    def appends() -> str:
        template.check_append_only()
        return "turn by turn gives the text of the whole conversation"

    def shows() -> str:
        template.check_shows_tools()
        return "the first prompt names them"

    def embeds() -> str:
        template.check_embedded(model_spec.read_vocabulary(path))
        return "the model embeds the tokens of prompts and stops"

    yield try_finding("chat template", appends)
    yield try_finding("tokens", embeds)
    style = template.call_style()
    if style != "plain":  # with `plain`, the policy knows its tools
        yield try_finding("tools", shows)
    yield _call_style(template, style)


def _call_style(template: ChatTemplate, style: Style | None) -> Finding:
    if style is None:
        detail = "the template writes no tool call in a known format"
        return Finding(
            "call style",
            "absent",
            detail,
            "set model.call_style to the format that the model was trained with",
        )
    call = ToolCall(TOOL.name, {"thing": 'a "red" cup'})
    read = parse(template.render_call(call, [TOOL]), [TOOL], style)
    if read != [call]:
        detail = f"a call that the template writes in the format {style} is parsed as {read}"
        return Finding("call style", "missing", detail, "set model.chat_template to another one")
    return Finding(
        "call style", "ok", f'a call in the format model.call_style = "{style}" is parsed'
    )


def _measure_noise(path: Path) -> str:
    from agentrl.trainer.model.bfloat16_cost import bfloat16_noise, bfloat16_speed

    noise = bfloat16_noise(path)
    return (
        f"|Δ log p| to float32 over {noise.tokens} tokens: median {noise.median:.4f}, "
        f"mean {noise.mean:.4f}, largest {noise.largest:.4f}; "
        f"{bfloat16_speed():.2g} times as fast as float32 on this CPU"
    )


def _memory(path: Path) -> Iterator[Finding]:
    """Estimate the memory of one trainer and one local policy server here, full and with LoRA."""
    machine = this_machine()
    try:
        described = model_spec.read_spec(path)
    except ConfigError as error:
        yield Finding("memory", "absent", f"cannot be estimated: {error}", error.hint)
        return
    for rank in (0, 16):
        config = Config(tasks={}, model=Model(path=str(path), dtype="bfloat16"))
        config = structs.replace(
            config, trainer=structs.replace(config.trainer, lora=Lora(rank=rank))
        )
        kind = f"LoRA, rank {rank}" if rank else "all weights"
        for plan in memory.memory_plans(config, described, machine):
            state: Literal["ok", "missing"] = "ok" if plan.fits else "missing"
            yield Finding(f"training {kind}", state, plan.words(), plan.hint())
