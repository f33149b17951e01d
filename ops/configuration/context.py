"""Checks that a step fits a trajectory, and a trajectory the model and its servers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.ops.configuration.model_spec import (
    read_original_positions,
    read_positions,
    read_window,
)


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """Most tokens of a trajectory; `name`: what sets it; `remedy`: how to do without it."""

    tokens: int
    name: str
    remedy: str


def check_context(config: Config) -> None:
    """Raise ConfigError if the limits of `[sampling]` exceed each other's or the policies'."""
    sampling = config.sampling
    if sampling.max_step_tokens > sampling.max_tokens:
        raise ConfigError(
            f"sampling.max_step_tokens: {sampling.max_step_tokens} exceeds "
            f"sampling.max_tokens {sampling.max_tokens}",
            hint="lower max_step_tokens or raise max_tokens",
        )
    limit = min(_limits(config), key=lambda each: each.tokens, default=None)
    if limit is not None and sampling.max_tokens > limit.tokens:
        raise ConfigError(
            f"sampling.max_tokens: {sampling.max_tokens} exceeds {limit.name}",
            hint=f"set it to at most {limit.tokens}, or {limit.remedy}",
        )
    check_longrope(config)


def check_longrope(config: Config) -> None:
    """Raise ConfigError if a vLLM would use other frequencies than the trainer.

    vLLM uses the long ones for all tokens if its context exceeds the original positions
    (Phi3LongRoPEScaledRotaryEmbedding), the trainer the short ones, as `check_context` limits it.
    """
    path = Path(config.model.path)
    original, positions = read_original_positions(path), read_positions(path)
    if original is None:
        return
    for server in config.engine_servers():
        context, key = server.vllm.context or positions, f"{server.section()}.vllm.context"
        if server.engine == "vllm" and context and context > original:
            raise ConfigError(
                f"{key}: with a context of {context}, {server.name} uses the model's long rotary "
                f"frequencies (longrope), and the trainer those of its {original} original "
                "positions",
                hint=f"set {key} to at most {original}",
            )


def _limits(config: Config) -> Iterator[TokenLimit]:
    path = Path(config.model.path)
    positions, window = read_positions(path), read_window(path)
    original = read_original_positions(path)
    if positions is not None:
        yield TokenLimit(
            positions, f"the model's {positions} positions", "choose another model.path"
        )
    if original is not None:  # beyond them log-probabilities depend on neighbours in a pass
        name = f"the {original} original positions of the model's longrope"
        yield TokenLimit(original, name, "choose another model.path")
    for server in config.engine_servers():
        section, context = server.section(), server.vllm.context
        if server.engine == "vllm" and context is not None:
            name = f"{section}.vllm.context {context} of {server.name}"
            yield TokenLimit(context, name, f"raise {section}.vllm.context")
        if server.engine == "local" and window is not None:  # its cache has no other context
            name = f"the model's sliding window of {window}, the context of {server.name}"
            yield TokenLimit(window, name, f'set {section}.engine = "vllm"')
