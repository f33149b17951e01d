"""What a memory item is, and the devices on which trainer and policy servers hold theirs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.errors import ConfigError

MIB, GIB = 2**20, 2**30
HOST = "this machine"
TEACHER = "teacher "  # how an item of the trainer begins that is one
CONTEXT = GIB  # of CUDA, its kernels and graphs, in each process
VLLM_SHARE = 0.92  # of the card, where no argument names another
SHARE = "--gpu-memory-utilization"
TENSOR_PARALLEL = "--tensor-parallel-size"
VISIBLE = "CUDA_VISIBLE_DEVICES"
TORCH = 350 * MIB  # a process that computes
PLAIN = 120 * MIB  # one that does not


Sizes = Mapping[str, tuple[int, str]]
CardNames = Mapping[str, str]  # of `name_cards`; empty: the cards of this machine are unknown


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """Bytes that a process holds on a device; `lower`: the key that makes it less, or nothing."""

    device: str
    process: str
    what: str
    size: int
    lower: str = ""


def device_of(config: Config) -> str:
    """Where trainer and local engines compute: `cuda:N`, or the machine's own memory."""
    kind, _, index = config.model.device.partition(":")
    return HOST if kind == "cpu" else f"{kind}:{index or 0}"


def name_cards(cards: Sequence[tuple[str, str]], shown: str | None) -> CardNames:
    """Return torch's name of each card by its index and by its UUID: {"2": "cuda:0", …}.

    `cards`: index and UUID of each, in the order of the PCI bus. `shown`: CUDA_VISIBLE_DEVICES of
    this process, by which torch numbers what it names; None: it is not set. A card that it hides is
    `GPU INDEX`.
    """
    known = {each: index for index, uuid in cards for each in (index, uuid)}
    order = [index for index, _ in cards]
    if shown is not None:
        given = [(each, _find_card(each, known)) for each in _split_ids(shown)]
        # CUDA ignores all cards from the first on that it does not know.
        valid = takewhile(lambda one: one[1] or one[0].startswith("MIG-") or not cards, given)
        order = [index or each for each, index in valid]
    devices = {each: f"cuda:{number}" for number, each in enumerate(order)}
    return {each: devices.get(index, f"GPU {index}") for each, index in known.items()} | devices


def _find_card(name: str, cards: Mapping[str, str]) -> str | None:
    """Look up a card by index, UUID or the beginning of a UUID."""
    if name.startswith("GPU-"):
        name = next((each for each in cards if each.startswith(name)), name)
    return cards.get(name)


def _split_ids(shown: str) -> list[str]:
    return [each.strip() for each in shown.split(",") if each.strip()]


def vllm_devices(config: Config, server: PolicyServer, names: CardNames) -> list[str]:
    """The first cards that its environment shows to it, as many as it splits the model over.

    Raises ConfigError.
    """
    if device_of(config) == HOST:
        return [HOST]
    count = tensor_parallel(server)
    if VISIBLE not in server.vllm.env:  # it sees the cards of this process
        return [f"cuda:{number}" for number in range(count)]
    shown = _split_ids(server.vllm.env[VISIBLE])
    if len(shown) < count:
        raise ConfigError(
            f"policy {server.name}: {TENSOR_PARALLEL} is {count}, but {VISIBLE} names {len(shown)}"
        )
    prefix = "GPU " if names else "cuda:"
    return [_find_card(each, names) or f"{prefix}{each}" for each in shown[:count]]


def trainer_devices(config: Config) -> list[str]:
    """Return the devices of the trainer: one per rank on this machine."""
    device = device_of(config)
    if device == HOST or config.trainer.engine == "torch":
        return [device]
    return [f"cuda:{rank}" for rank in range(config.trainer.ranks)]


def shares_trainer_card(config: Config, server: PolicyServer, names: CardNames) -> bool:
    """Return whether vLLM and the trainer use the same card. Raises ConfigError."""
    if server.engine != "vllm" or device_of(config) == HOST:
        return False
    return bool(set(vllm_devices(config, server, names)) & set(trainer_devices(config)))


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


def size_text(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / MIB:.0f} MiB"


def element_bytes(config: Config) -> int:
    """Bytes of an element in the model's dtype."""
    return 4 if config.model.dtype == "float32" else 2


def place_sizes(device: str, process: str, sizes: Sizes) -> Iterator[MemoryItem]:
    """Yield an item for each size. `sizes`: by name, with the key that makes it less."""
    for what, (size, lower) in sizes.items():
        yield MemoryItem(device, process, what, size, lower)
