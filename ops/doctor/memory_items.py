"""The memory items of trainer and policy servers: bytes, and the key that reduces them.

    trainer       weights · moments · reference · max(an update, a snapshot)
    local engine  weights of every policy and of the next · kept prefixes · running rows · a pass
    vLLM          its share of the card, or of the machine's memory what it takes there

P parameters, T of them trained, each `a` bytes (2 or 4) as the model's dtype says. docs/one-gpu.md
has the formulas in words, and their measured error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentrl.core.config.config import Config
from agentrl.core.config.sections import PolicyServer
from agentrl.core.errors import ConfigError
from agentrl.ops.configuration.model_spec import ModelSpec
from agentrl.serving.vllm.launch import max_rank
from agentrl.trainer.algorithm import presets

MIB, GIB = 2**20, 2**30
HOST = "this machine"
CONTEXT = GIB  # of CUDA, its kernels and graphs, in each process
VLLM_WORK = GIB  # what vLLM computes with at its largest batch
VLLM_HOST = 3 * GIB  # its own processes
VLLM_SHARE = 0.92  # of the card, where no argument names another
SHARE = "--gpu-memory-utilization"
TENSOR_PARALLEL = "--tensor-parallel-size"
CHUNK_COPIES = 6  # of the logits held at once in fp32, while their loss is computed
HOST_SLACK = 0.5  # what malloc keeps of what an update frees: 0 to 0.9 where measured
CARD_SLACK = 0.15  # what torch keeps of it on a card: an allowance
PASS = 4096  # tokens of a local engine's largest pass
TORCH = 350 * MIB  # a process that computes
PLAIN = 120 * MIB  # one that does not
WORKER = 160 * MIB

_LORA = "trainer.lora.rank above 0 (an adapter is trained)"
_RANK = "trainer.lora.rank"
_READ_FIRST = {"q_proj", "k_proj", "v_proj"}
_READ_SECOND = {"gate_proj", "up_proj"}
_MATRICES = _READ_FIRST | _READ_SECOND | {"o_proj", "down_proj"}

Sizes = Mapping[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """Bytes that a process holds on a device; `lower`: the key that makes it less, or nothing."""

    device: str
    process: str
    what: str
    size: int
    lower: str = ""


def memory_items(
    config: Config, shape: ModelSpec, cards: Mapping[str, int]
) -> Iterator[MemoryItem]:
    """Of every process. `cards`: bytes by device, of those that are known. Raises ConfigError."""
    yield from _trainer(config, shape)
    for server in config.policy_servers():
        if server.engine == "vllm":
            yield from _vllm(config, server, shape, cards)
        elif server.engine == "local":
            yield from _local(config, server, shape)
    if config.eval.every:
        own, server = config.as_evaluated(), config.eval_server()
        if server.engine == "vllm":
            yield from _vllm(own, server, shape, cards)
        else:
            yield from _local(own, server, shape)
    for n in range(config.workers):
        yield MemoryItem(HOST, f"worker-{n}", "process", WORKER, "workers")
    yield MemoryItem(HOST, "the rest", "dispatcher, recorder, supervisor", 3 * PLAIN)


def device_of(config: Config) -> str:
    """Where trainer and local engines compute: `cuda:N`, or the machine's own memory."""
    kind, _, index = config.model.device.partition(":")
    return HOST if kind == "cpu" else f"{kind}:{index or 0}"


def vllm_devices(config: Config, server: PolicyServer) -> list[str]:
    """The first cards that its environment shows to it, as many as it splits the model over.

    Raises ConfigError.
    """
    if device_of(config) == HOST:
        return [HOST]
    count = tensor_parallel(server)
    shown = [each for each in server.vllm.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if shown and len(shown) < count:
        raise ConfigError(
            f"policy {server.name}: {TENSOR_PARALLEL} is {count}, but CUDA_VISIBLE_DEVICES names "
            f"{len(shown)}"
        )
    return [f"cuda:{each}" for each in (shown or map(str, range(count)))][:count]


def trainer_devices(config: Config) -> list[str]:
    """Return the devices of the trainer: one per rank on this machine."""
    device = device_of(config)
    if device == HOST or config.trainer.engine == "torch":
        return [device]
    return [f"cuda:{rank}" for rank in range(config.trainer.ranks)]


def shares_trainer_card(config: Config, server: PolicyServer) -> bool:
    """Return whether vLLM and the trainer use the same card. Raises ConfigError."""
    if server.engine != "vllm" or device_of(config) == HOST:
        return False
    return bool(set(vllm_devices(config, server)) & set(trainer_devices(config)))


def tensor_parallel(server: PolicyServer) -> int:
    """Over how many cards vLLM splits the model. Raises ConfigError."""
    text = _argument(server, TENSOR_PARALLEL) or _argument(server, "-tp")
    if text is None:
        return 1
    if not text.isdecimal() or int(text) < 1:
        where = f"policy {server.name}: policy.vllm.args"
        raise ConfigError(f"{where}: {TENSOR_PARALLEL} {text} is not a number of GPUs")
    return int(text)


def gpu_share(server: PolicyServer) -> float:
    """What vLLM takes of its card. Raises ConfigError for what is no share."""
    text = _argument(server, SHARE)
    if text is None:
        return VLLM_SHARE
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise ConfigError(
            f"policy {server.name}: policy.vllm.args: {SHARE} {text} is not between 0 and 1"
        )
    return share


def _argument(server: PolicyServer, name: str) -> str | None:
    """What follows an argument of vLLM's; empty where nothing does."""
    words = [word for argument in server.vllm.args for word in argument.split("=", 1)]
    return (words[words.index(name) + 1 :] or [""])[0] if name in words else None


def _trainer(config: Config, shape: ModelSpec) -> Iterator[MemoryItem]:
    """Masters, gradients and moments are fp32; a frozen base is held as it is served."""
    device, lora = device_of(config), config.trainer.lora.rank > 0
    count = trained_parameters(config, shape)
    hint = _RANK if lora else _LORA
    update = dict(_update(config, shape))
    moments = 8 * count if config.trainer.optimizer == "adamw" else 0
    snapshot = 4 * count + moments  # weights and moments, copied to memory of the machine
    frozen = lora * element_bytes(config) * shape.parameters
    sizes: dict[str, tuple[int, str]] = {
        "weights": (4 * count + frozen, "" if lora else _LORA),
        "moments": (moments, hint),
        "reference": (_reference(config, shape), "trainer.kl_weight"),
        **update,
    }
    if device == HOST:
        sizes |= {"snapshot": (snapshot, hint), "torch": (TORCH, "")}
    else:
        sizes["CUDA"] = (CONTEXT, "")
        yield MemoryItem(HOST, "trainer", "torch and CUDA", TORCH + CONTEXT)
        yield MemoryItem(
            HOST,
            "trainer",
            "weights while read, or snapshot",
            max(snapshot, sizes["weights"][0]),
            hint,
        )
    yield from _place_sizes(device, "trainer", sizes)


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
    wished, trajectory = config.trainer.micro_batch_tokens, config.sampling.max_tokens
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


def _local(config: Config, server: PolicyServer, shape: ModelSpec) -> Iterator[MemoryItem]:
    """An upper bound: every policy has met as many requests at once as there can be."""
    device, width, lora = device_of(config), element_bytes(config), config.trainer.lora
    policies, token = len(server.tracks), width * 2 * shape.layers * shape.keys
    rows = min(server.max_batch, config.workers * config.worker.concurrency)
    running = policies * _double_until(rows, 8) * _double_until(config.sampling.max_tokens, 128)
    own = sum(a * b for a, b in shape.targets(lora.targets)) if lora.rank else shape.parameters
    weights = width * ((policies + 1) * own + (shape.parameters if lora.rank else 0))
    work = width * PASS * (4 * shape.inner + 6 * shape.hidden) + 12 * rows * shape.vocabulary
    sizes = {
        "weights": (weights, "policy.tracks"),
        "kept prefixes": (server.cache_tokens * token, "policy.cache_tokens"),
        "running rows": (running * token, "policy.max_batch"),
        "a pass": (work, ""),
        **({"torch": (TORCH, "")} if device == HOST else {"CUDA": (CONTEXT, "")}),
    }
    yield from _place_sizes(device, f"policy {server.name}", sizes)
    if device != HOST:
        read = TORCH + CONTEXT + width * shape.parameters
        yield MemoryItem(HOST, f"policy {server.name}", "torch, CUDA, weights while read", read)


def _vllm(
    config: Config, server: PolicyServer, shape: ModelSpec, cards: Mapping[str, int]
) -> Iterator[MemoryItem]:
    """Of each of its cards vLLM takes its share, whatever it needs of it."""
    process, width = f"policy {server.name}", element_bytes(config)
    devices, least = vllm_devices(config, server), least_of_vllm(config, server, shape)
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
        yield MemoryItem(HOST, process, "keys and values", room, f"{key} in policy.vllm.env")
        return
    for device in devices:
        if device not in cards:
            yield MemoryItem(device, process, "at least", least)
            continue
        share = gpu_share(server)
        size = int(share * cards[device])
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


def trained_parameters(config: Config, shape: ModelSpec) -> int:
    """Parameters that are trained."""
    lora = config.trainer.lora
    return shape.adapter(lora.rank, lora.targets) if lora.rank else shape.parameters


def _reference(config: Config, shape: ModelSpec) -> int:
    """The KL term's model; without an adapter to leave out it is loaded a second time."""
    anchored = presets.resolve_settings(config.trainer).kl_weight > 0
    return 4 * shape.parameters if anchored and not config.trainer.lora.rank else 0


def element_bytes(config: Config) -> int:
    """Bytes of an element in the model's dtype."""
    return 4 if config.model.dtype == "float32" else 2


def _place_sizes(device: str, process: str, sizes: Sizes) -> Iterator[MemoryItem]:
    for what, (size, lower) in sizes.items():
        yield MemoryItem(device, process, what, size, lower)


def _double_until(need: int, least: int) -> int:
    """How far a cache grows that grows by doubling."""
    size = least
    while size < need:
        size *= 2
    return size
