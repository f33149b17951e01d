"""What the trainer holds in memory: weights, moments, reference, teachers, update, snapshot,
checkpoint.

docs/one-gpu.md has the formulas in words, and their measured error.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agentrl.checkpoints.manifest import find_base
from agentrl.core.config.config import Config
from agentrl.core.errors import CheckpointError, ConfigError
from agentrl.ops.configuration.model_spec import ModelSpec, read_spec
from agentrl.ops.doctor.memory_items import (
    CONTEXT,
    HOST,
    TEACHER,
    TORCH,
    MemoryItem,
    device_of,
    element_bytes,
    place_sizes,
)
from agentrl.trainer.algorithm import presets

CHUNK_COPIES = 6  # of the logits held at once in fp32, while their loss is computed
HOST_SLACK = 0.5  # what malloc keeps of what an update frees: 0 to 0.9 where measured
CARD_SLACK = 0.15  # what torch keeps of it on a card: an allowance
_LORA = "trainer.lora.rank above 0 (an adapter is trained)"
_RANK = "trainer.lora.rank"
_READ = "weights while read, or snapshot"  # whole beside a shard; else they are read into place
_READ_FIRST = {"q_proj", "k_proj", "v_proj"}
_READ_SECOND = {"gate_proj", "up_proj"}
_MATRICES = _READ_FIRST | _READ_SECOND | {"o_proj", "down_proj"}


def trainer_items(config: Config, shape: ModelSpec) -> Iterator[MemoryItem]:
    """Masters, gradients and moments are fp32; a frozen base is held as it is served."""
    device, lora = device_of(config), config.trainer.lora.rank > 0
    count = trained_parameters(config, shape)
    hint = _RANK if lora else _LORA
    update = dict(_update(config, shape))
    moments = 8 * count if config.trainer.optimizer == "adamw" else 0
    snapshot = 4 * count + moments  # weights and moments, copied to memory of the machine
    published = element_bytes(config) * count  # a copy, too: the next update is computed beside it
    frozen = lora * element_bytes(config) * shape.parameters
    sizes: dict[str, tuple[int, str]] = {
        "weights": (4 * count + frozen, "" if lora else _LORA),
        "moments": (moments, hint),
        "reference": (_reference(config, shape), "trainer.kl_weight"),
        **dict(_teachers(config, shape)),
        **update,
    }
    read = max(snapshot, sizes["weights"][0])
    if device == HOST:
        is_sharded = config.trainer.engine == "deepspeed" and config.trainer.deepspeed.zero == 3
        sizes |= {
            **({_READ: (read, hint)} if is_sharded else {"snapshot": (snapshot, hint)}),
            "checkpoint": (published, hint),
            "torch": (TORCH, ""),
        }
    else:
        sizes["CUDA"] = (CONTEXT, "")
        yield MemoryItem(HOST, "trainer", "torch and CUDA", TORCH + CONTEXT)
        yield MemoryItem(HOST, "trainer", _READ, read, hint)
        yield MemoryItem(HOST, "trainer", "checkpoint", published, hint)
    yield from place_sizes(device, "trainer", sizes)


def _update(config: Config, shape: ModelSpec) -> Iterator[tuple[str, tuple[int, str]]]:
    """What is there beside weights and moments when the backward pass begins."""
    lora, width = config.trainer.lora.rank > 0, element_bytes(config)
    tokens, lower = _longest(config)
    yield "gradients", (4 * trained_parameters(config, shape), _RANK if lora else _LORA)
    kept = tokens * activations(config, shape)
    yield "activations", (kept, lower)
    most = presets.chunk_logits(config.trainer, config.model.device)
    logits = CHUNK_COPIES * 4 * min(most, tokens * shape.vocabulary)
    layer = 4 * width * tokens * shape.inner
    head = 0 if lora else 4 * shape.vocabulary * shape.hidden
    yield "logits", (logits + head + layer, lower)
    if width == 2 and not lora:
        again = config.trainer.gradient_checkpointing  # one layer's at a time then
        yield "matrices in bfloat16", (2 * shape.linear // (shape.layers if again else 1), _LORA)
    slack = HOST_SLACK if device_of(config) == HOST else CARD_SLACK
    yield "freed, not given back", (int(slack * (kept + logits + head + layer)), lower)


def _longest(config: Config) -> tuple[int, str]:
    """Tokens of the largest micro-batch, and the keys that bound it."""
    trainer, trajectory = config.trainer, config.sampling.max_tokens
    wished = trainer.micro_batch_tokens if trainer.packing else 0  # one trajectory each
    keys = ["trainer.micro_batch_tokens"] * (wished >= trajectory)
    keys += ["sampling.max_tokens"] * (trajectory >= wished)
    return max(wished, trajectory), " and ".join(keys)


def activations(config: Config, shape: ModelSpec) -> int:
    """Bytes that all layers keep of a token until the backward pass.

    As transformers' Llama, Qwen and Gemma 3 save them: inputs of the norms, queries, keys, values
    and output of the attention (joined, once more, where it is packed), three products of the gated
    MLP, and what trained matrices read (in bfloat16 each a copy of its own). The last norm belongs
    to no layer. With gradient checkpointing a layer keeps its input, and one of them all at a time.
    """
    lora, width = config.trainer.lora, element_bytes(config)
    adapted, low = lora.rank > 0, width == 2
    targets = set(lora.targets) if adapted else _MATRICES
    norm = (1 if adapted else 2) * shape.hidden
    exact = shape.norms * norm  # elements in fp32 whatever the dtype
    elements = 2 * (shape.queries + shape.keys)
    if config.trainer.packing and device_of(config) != HOST:
        elements *= 2  # padded up to the next power of two
    gated = 3 * shape.inner + ("down_proj" in targets) * shape.inner
    if shape.routed and not adapted:  # autocast does not reach the experts
        exact += gated + 2 * shape.routed * shape.hidden
    else:
        elements += gated + shape.routed * shape.hidden
    if shape.normed:
        exact += shape.queries + shape.keys
        elements += 0 if adapted else shape.queries + shape.keys
    second = {"router"} if shape.routed and not adapted else targets & _READ_SECOND
    for readers in (targets & _READ_FIRST, second):
        elements += (len(readers) if low else bool(readers)) * shape.hidden
    copied = config.trainer.packing or (low and adapted)
    elements += ("o_proj" in targets and copied) * shape.queries
    elements += lora.rank * len(targets) if adapted else 0
    layer = 4 * exact + width * elements
    if config.trainer.gradient_checkpointing:
        return shape.layers * (width if adapted else 4) * shape.hidden + layer + 4 * norm
    return shape.layers * layer + 4 * norm


def trained_parameters(config: Config, shape: ModelSpec) -> int:
    """Parameters that are trained."""
    lora = config.trainer.lora
    return shape.adapter(lora.rank, lora.targets) if lora.rank else shape.parameters


def _reference(config: Config, shape: ModelSpec) -> int:
    """The KL term's model; without an adapter to leave out it is loaded a second time."""
    anchored = presets.resolve_settings(config.trainer).kl_weight > 0
    return 4 * shape.parameters if anchored and not config.trainer.lora.rank else 0


def _teachers(config: Config, shape: ModelSpec) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the local teachers, which have the model's dtype.

    One whose size is unknown, as that of a checkpoint of the store, counts as large as the model.
    """
    for teacher in config.teacher:
        if teacher.policy():
            continue
        path, known = Path(teacher.checkpoint), shape
        with suppress(ConfigError, CheckpointError):
            known = read_spec(find_base(path) or path)
        size = element_bytes(config) * known.parameters
        yield f"{TEACHER}{teacher.name}", (size, "teacher.checkpoint")
