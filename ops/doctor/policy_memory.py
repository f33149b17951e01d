"""What a policy server holds in memory.

    local engine  weights of every policy and of the next · kept prefixes · running rows · a pass
    vLLM          its share of the card, or of the machine's memory what it takes there

docs/one-gpu.md has the formulas in words, and their measured error.
"""

import math
from collections import Counter
from collections.abc import Iterator

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.errors import ConfigError
from agentrl.ops.configuration.model_spec import ModelSpec
from agentrl.ops.doctor.machine import Machine
from agentrl.ops.doctor.memory_items import (
    CONTEXT,
    GIB,
    HOST,
    PLAIN,
    SHARE,
    TORCH,
    MemoryItem,
    device_of,
    element_bytes,
    gpu_share,
    place_sizes,
    tensor_parallel,
    vllm_devices,
)
from agentrl.serving.local.pass_sizes import (
    ROWS,
    WIDTH,
    PassSizes,
    double_until,
    row_length,
)
from agentrl.serving.vllm.launch import max_rank

VLLM_WORK = GIB  # what vLLM computes with at its largest batch
VLLM_HOST = 3 * GIB  # its own processes


def local_items(config: Config, server: PolicyServer, shape: ModelSpec) -> Iterator[MemoryItem]:
    """An upper bound: every policy has met as many requests at once as there can be."""
    device, width, lora = device_of(config), element_bytes(config), config.trainer.lora
    policies, token = len(server.tracks), width * 2 * shape.layers * shape.keys
    rows = min(server.max_batch, config.workers * config.worker.concurrency)
    one = width * shape.parameters
    is_recorded = device != HOST and one <= server.graph_bytes
    caches, tokens = policies + 1, PassSizes.on(config.model.device).group
    length = row_length(config.model.device, config.sampling.max_tokens)
    if is_recorded:  # caches of unloaded policies are kept; sizes are rounded up
        caches, tokens, rows = 2 * policies, 2 * tokens, double_until(ROWS, rows)
        length = row_length(device, -(-config.sampling.max_tokens // WIDTH) * WIDTH)
    running = caches * (double_until(8, rows) + 1) * length
    grows = device == HOST  # in small steps, with half of the new cache beside the old one
    running += grows * (double_until(8, rows) + 1) * length // 2
    own = sum(a * b for a, b in shape.targets(lora.targets)) if lora.rank else shape.parameters
    weights = width * ((policies + 1) * own + (shape.parameters if lora.rank else 0))
    may_pack = device == HOST and config.model.dtype == "bfloat16"  # depends on the CPU, too
    packed = one * (1 if lora.rank else policies + 1) if may_pack else 0
    logits = 4 * rows * shape.vocabulary
    recorded = one + 2 * logits if is_recorded else 0
    masks = 2 * width * tokens * length * shape.queries // shape.keys
    work = width * tokens * (4 * shape.inner + 6 * shape.hidden) + 3 * logits + masks
    read = width * _read_twice(shape) if device == HOST else 0
    sizes = {
        "weights": (weights, "policy.tracks"),
        "weights while read": (read, ""),
        "packed weights": (packed, "" if lora.rank else "policy.tracks"),
        "CUDA graphs": (recorded, "policy.graph_bytes"),
        "prefix cache": (server.cache_tokens * token, "policy.cache_tokens"),
        "KV cache of running sequences": (running * token, "policy.max_batch"),
        "a forward pass": (work, ""),
        **({"torch": (TORCH, "")} if device == HOST else {"CUDA": (CONTEXT, "")}),
    }
    yield from place_sizes(device, f"policy {server.name}", sizes)
    if device != HOST:
        held = TORCH + CONTEXT + one
        yield MemoryItem(HOST, f"policy {server.name}", "torch, CUDA, weights while read", held)


def _read_twice(shape: ModelSpec) -> int:
    """Return the elements that a CPU has in memory once more while it reads weights into place.

    They are those of a tensor that is cast, or packed. A layer's experts are joined and, to compare
    them with their files, copied apart, while malloc still keeps what was joined.
    """
    sizes: Counter[str] = Counter()
    for name, dimensions in shape.tensors.items():
        layer, is_expert, _ = name.partition(".experts.")
        sizes[layer if is_expert else name] += math.prod(dimensions) * (2 if is_expert else 1)
    return max(sizes.values())


def vllm_items(
    config: Config, server: PolicyServer, shape: ModelSpec, machine: Machine
) -> Iterator[MemoryItem]:
    """Of each of its cards vLLM takes its share, whatever it needs of it."""
    process, width = f"policy {server.name}", element_bytes(config)
    devices = vllm_devices(config, server, machine.names)
    least = least_of_vllm(config, server, shape)
    yield MemoryItem(HOST, process, "vLLM and its proxy", len(devices) * VLLM_HOST + PLAIN)
    if config.trainer.lora.rank:
        kept = server.vllm.cpu_adapters * _slot(config, shape)
        yield MemoryItem(HOST, process, "adapters", kept, "policy.vllm.cpu_adapters")
    if devices == [HOST]:
        key = "VLLM_CPU_KVCACHE_SPACE"
        yield MemoryItem(HOST, process, "weights", width * shape.parameters)
        text = server.vllm.env.get(key, "1")
        if not text.isdecimal():
            raise ConfigError(
                f"policy {server.name}: policy.vllm.env: {key} {text} is not a number of GiB"
            )
        room = int(text) * GIB
        yield MemoryItem(HOST, process, "KV cache", room, f"{key} in policy.vllm.env")
        return
    for device in devices:
        if device not in machine.cards:
            yield MemoryItem(device, process, "at least", least)
            continue
        share = gpu_share(server)
        size = int(share * machine.cards[device])
        yield MemoryItem(
            device, process, f"{share:.0%} of the card", size, f"{SHARE} in policy.vllm.args"
        )
        yield MemoryItem(device, process, "CUDA", CONTEXT)


def least_of_vllm(config: Config, server: PolicyServer, shape: ModelSpec) -> int:
    """Bytes of a card without which it cannot start: weights, adapters' slots, one full context,
    its work. Weights and context are split over its cards; adapters count whole on each.
    """
    width = element_bytes(config)
    context = server.vllm.context or config.sampling.max_tokens
    slots = server.vllm.max_adapters * _slot(config, shape) if config.trainer.lora.rank else 0
    kept = width * 2 * shape.layers * shape.keys * context
    return (width * shape.parameters + kept) // tensor_parallel(server) + slots + VLLM_WORK


def _slot(config: Config, shape: ModelSpec) -> int:
    """Bytes of an adapter in vLLM, which rounds its rank up."""
    lora = config.trainer.lora
    return element_bytes(config) * shape.adapter(max_rank(lora.rank), lora.targets)
