"""The hyper-parameters of training: a preset, overridden by the configuration."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from agentrl.core.config.sections.episodes import Dispatch, Sampling
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.errors import ConfigError, require_known
from agentrl.trainer.algorithm.advantages import ADVANTAGES
from agentrl.trainer.algorithm.credit.registry import known_credits, read_options
from agentrl.trainer.algorithm.losses.loss_interface import Clip
from agentrl.trainer.algorithm.losses.registry import known_losses

Kind = Literal["none", "truncated", "icepop"]

CHUNK_LOGITS = {"cpu": 2**22, "cuda": 2**27}  # by kind of device
CLONING_LOGITS = 2**25  # in `agentrl warmstart`, on any device
INBOX_BYTES = 512 * 1024 * 1024  # least of what the inbox may hold by default
BYTES_PER_TOKEN = 18  # of an episode in memory: its arrays have 10, its texts about 8


@dataclass(frozen=True, slots=True)
class Importance:
    """Token weights π_prox/μ and their bounds; see trainer/algorithm/losses/importance.py."""

    kind: Kind
    least: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The complete settings of the learner. `norm_floor`: smallest σ for normalising advantages."""

    learning_rate: float
    weight_decay: float
    warmup_updates: int
    decay_updates: int
    max_grad_norm: float
    loss: str
    old: Literal["behaviour", "proximal"]
    clip: Clip
    importance: Importance
    mixed_sequences: bool
    kl_weight: float
    rewards: bool
    credit: str
    credit_options: msgspec.Struct
    advantage: str
    normalise: Literal["none", "task", "environment"]
    task_norm_min_tokens: int
    norm_floor: float
    aggregate: Literal["token_mean", "group_mean"]
    task_weights: Mapping[str, float]
    abnormal_reward: float | None
    keep_share: float
    turn_penalty: float
    token_penalty: float
    micro_batch_tokens: int
    memory_share: float
    packing: bool
    gradient_checkpointing: bool
    optimizer_steps: int
    optimizer: Literal["adamw", "sgd"]
    lora: Lora

    @property
    def pass_tokens(self) -> int:
        """Most tokens in one forward pass of several trajectories; 1: each has its own pass."""
        return self.micro_batch_tokens if self.packing else 1

    @property
    def needs_one_policy(self) -> bool:
        """Whether a trajectory of several policies is refused: its ratio has no meaning."""
        return known_losses()[self.loss].of_sequence and not self.mixed_sequences


PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "learning_rate": 1e-6,
        "loss": "ppo_clip",
        "old": "proximal",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "dual_clip": 3.0,
        "importance": "truncated",
        "kl_weight": 0.0,
        "credit": "outcome",
        "advantage": "centred",
        "normalise": "task",
        "aggregate": "token_mean",
        "abnormal_reward": None,
    },
    "paper": {
        "learning_rate": 1e-6,
        "loss": "ppo_clip",
        "old": "behaviour",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "dual_clip": 3.0,
        "importance": "truncated",  # where `old` is set to proximal
        "kl_weight": 1e-4,
        "credit": "outcome",
        "advantage": "std",
        "normalise": "task",
        "aggregate": "token_mean",
        "abnormal_reward": -0.2,
    },
}
WEIGHTS: Mapping[Kind, Importance] = {
    "none": Importance("none"),
    "truncated": Importance("truncated", most=2.0),
    "icepop": Importance("icepop", least=0.5, most=5.0),
}
NORM_FLOOR = 0.1
GRPO = 'GRPO is loss = "ppo_clip" with advantage = "std"; preset = "paper" sets both'


def resolve_settings(config: Trainer) -> Settings:
    """Return the settings: the configuration's values, else the preset's.

    Raises ConfigError for contradictions: `old = "behaviour"` with importance weights (the ratio
    π/μ already corrects for the behaviour policy), bounds that the loss does not use, a penalty
    that the credit ignores, a decay that ends before the warm-up does.
    """
    _check_engine(config)
    if 0 < config.decay_updates <= config.warmup_updates:
        raise ConfigError(
            f"trainer.decay_updates = {config.decay_updates} is not above warmup_updates = "
            f"{config.warmup_updates}",
            hint="set it to the number of updates of the run",
        )
    values = _configured_values(config)
    importance = _importance(config, values.pop("importance"), values["old"])
    if config.dual_clip is not None and not known_losses()[values["loss"]].dual_clip:
        raise ConfigError(
            f"trainer.dual_clip: the loss {values['loss']} has no dual clip", hint="remove the key"
        )
    if config.turn_penalty and not known_credits()[values["credit"]].turn_penalty:
        raise ConfigError(
            f'trainer.turn_penalty has no effect with credit = "{values["credit"]}", which '
            "compares turns with turns that have the same penalty",
            hint="remove the key, or choose another credit",
        )
    clip = Clip(values.pop("clip_low"), values.pop("clip_high"), values.pop("dual_clip"))
    if clip.low > 1.0:
        raise ConfigError(
            "trainer.clip_low exceeds 1, but a ratio is never below 0", hint="set it to at most 1"
        )
    return Settings(
        weight_decay=config.weight_decay,
        warmup_updates=config.warmup_updates,
        decay_updates=config.decay_updates,
        max_grad_norm=config.max_grad_norm,
        clip=clip,
        importance=importance,
        rewards=config.rewards,
        credit_options=read_options(values["credit"], config.credit_options),
        mixed_sequences=config.mixed_sequences,
        task_norm_min_tokens=config.task_norm_min_tokens,
        norm_floor=NORM_FLOOR,
        task_weights=config.task_weights,
        keep_share=config.keep_share,
        turn_penalty=config.turn_penalty,
        token_penalty=config.token_penalty,
        micro_batch_tokens=config.micro_batch_tokens,
        memory_share=config.memory_share,
        packing=config.packing,
        gradient_checkpointing=config.gradient_checkpointing,
        optimizer_steps=config.optimizer_steps,
        optimizer=config.optimizer,
        lora=config.lora,
        **values,
    )


def preset_value(key: str) -> dict[str, Any]:
    """Return the default of a key of [trainer] by preset, loss or `importance`."""
    bound = {"min_weight": "least", "max_weight": "most"}.get(key)
    if bound:
        return {kind: value for kind, each in WEIGHTS.items() if (value := getattr(each, bound))}
    clips = {name: loss.clip for name, loss in known_losses().items()}
    return {name: values[key] for name, values in (PRESETS | clips).items() if key in values}


def choices(key: str) -> Collection[str]:
    """Return the allowed names of a key of [trainer] that files of `trainer/algorithm` register."""
    registries: Mapping[str, Collection[str]] = {
        "loss": known_losses(),
        "credit": known_credits(),
        "advantage": ADVANTAGES,
    }
    return registries.get(key, ())


def chunk_logits(trainer: Trainer, device: str) -> int:
    """Return the number of logits in memory while a loss is computed. device: as torch names it."""
    kind = device.partition(":")[0]
    return trainer.chunk_logits or CHUNK_LOGITS.get(kind, CHUNK_LOGITS["cpu"])


def batch_groups(trainer: Trainer, dispatch: Dispatch) -> tuple[int, int]:
    """Return the smallest and the largest number of groups in a batch.

    Raises ConfigError if no batch can have both.
    """
    fewest = trainer.min_groups or dispatch.groups_per_update
    most = trainer.max_groups or 2 * fewest
    if most < fewest:
        key = "trainer.min_groups" if trainer.min_groups else "dispatch.groups_per_update"
        raise ConfigError(
            f"trainer.max_groups: {most} is below {key} = {fewest}, so no batch would ever be full",
            hint=f"set it to at least {fewest}, or lower trainer.min_groups",
        )
    return fewest, most


def inbox_bytes(trainer: Trainer, dispatch: Dispatch, sampling: Sampling) -> int:
    """Return the memory for episodes while a batch is collected, in bytes.

    Raises ConfigError if the configured value is smaller than a batch may need.
    """
    groups = batch_groups(trainer, dispatch)[1]
    need = groups * dispatch.group_size * sampling.max_tokens * BYTES_PER_TOKEN
    if trainer.inbox_bytes is None:
        return max(INBOX_BYTES, need)
    if trainer.inbox_bytes < need:
        raise ConfigError(
            f"trainer.inbox_bytes {trainer.inbox_bytes}: a batch of {groups} groups of "
            f"{dispatch.group_size} episodes of up to {sampling.max_tokens} tokens may need {need}",
            hint="raise it, or lower trainer.max_groups",
        )
    return trainer.inbox_bytes


def _check_engine(config: Trainer) -> None:
    section = config.deepspeed
    if config.engine == "torch" and config.ranks > 1:
        hint = 'set trainer.engine = "deepspeed", or trainer.ranks = 1'
        raise ConfigError("trainer.ranks: the engine torch has only one process", hint=hint)
    if section.offload != "none" and section.zero == 0:
        raise ConfigError("trainer.deepspeed.offload: ZeRO 0 offloads nothing", hint="set zero = 2")
    if section.offload == "all" and section.zero != 3:
        raise ConfigError(
            'trainer.deepspeed.offload: only ZeRO 3 offloads "all"', hint="set zero = 3"
        )
    if section.weights == "model":
        if config.engine == "torch" or section.zero != 3:
            raise ConfigError(
                'trainer.deepspeed.weights: only ZeRO 3 supports "model"',
                hint='set engine = "deepspeed" and zero = 3, or weights = "float32"',
            )
        if config.lora.rank:
            raise ConfigError(
                'trainer.deepspeed.weights = "model" has no effect with LoRA: the base of an '
                "adapter always has model.dtype",
                hint='set weights = "float32"',
            )


def _configured_values(config: Trainer) -> dict[str, Any]:
    preset = PRESETS[config.preset]
    named = {name: getattr(config, name) for name in preset if getattr(config, name) is not None}
    for key, value in named.items():
        if value == "grpo" and key in ("loss", "advantage"):
            raise ConfigError(f'trainer.{key}: there is no {key} named "grpo"', hint=GRPO)
        if known := choices(key):
            require_known(f"trainer.{key}", value, known)
    loss = known_losses()[named.get("loss", preset["loss"])]
    return {**preset, **loss.clip, **named}


def _importance(config: Trainer, kind: Kind, old: str) -> Importance:
    if old == "behaviour":
        if config.importance not in (None, "none") or config.max_weight is not None:
            raise ConfigError(
                'trainer.importance and max_weight cannot be used with old = "behaviour": its '
                "ratio already corrects for the policy that sampled",
                hint='remove importance, min_weight and max_weight, or set old = "proximal"',
            )
        kind = "none"
    usual = WEIGHTS[kind]
    for name, used in (("min_weight", kind == "icepop"), ("max_weight", kind != "none")):
        if getattr(config, name) is not None and not used:
            raise ConfigError(
                f'trainer.{name}: importance = "{kind}" has no such bound', hint="remove the key"
            )
    least = usual.least if config.min_weight is None else config.min_weight
    return Importance(kind, least, config.max_weight or usual.most)
