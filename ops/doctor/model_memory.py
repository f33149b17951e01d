"""The memory that training and serving a model take on each card, as tables in Markdown.

model's architecture ─▶ a configuration for each method, ZeRO stage and length ─▶ the plan of
`agentrl doctor` ─▶ one cell
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.policies import Model, PolicyServer, Vllm
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import DeepSpeed, Lora, Trainer
from agentrl.ops.configuration.model_spec import ModelSpec, known_spec, read_spec
from agentrl.ops.configuration.published_models import PUBLISHED
from agentrl.ops.doctor.memory import TRAINER, Machine, memory_plans
from agentrl.ops.doctor.memory_items import GIB, TENSOR_PARALLEL
from agentrl.ops.doctor.policy_memory import least_of_vllm
from agentrl.ops.runs import hub

LENGTHS = (4096, 32768)  # tokens of the longest trajectory, and of a micro-batch
CARDS = 8
LORA_RANK = 16
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]  # adapted where the MLP is of experts
STAGES: Sequence[Literal[1, 2, 3]] = (1, 2, 3)
SPLITS = (1, 2, 4, 8)  # cards of one vLLM
_PAGE = f"""# The memory of a model

See what each card needs, in GiB, by [the plan](one-gpu.md#the-memory-plan) of `agentrl doctor`, for
AdamW, bfloat16 and gradient checkpointing. The first number of a cell is for trajectories,
micro-batches and contexts of {LENGTHS[0]:,} tokens, the second for {LENGTHS[1]:,}; between them
memory grows linearly. The plan was [measured](measurements.md#policies) on CPUs, not on GPUs.

    agentrl model memory MODEL      # these lines of another model
    agentrl doctor CONFIG           # the plan of your own configuration
"""

Row = Callable[[ModelSpec, int, int], int]  # model, column, tokens → bytes


def page() -> str:
    """Return docs/model-memory.md: every published model that is known."""
    specs = {name: known_spec(name) for name in PUBLISHED}
    return _PAGE + "\n" + tables({name: spec for name, spec in specs.items() if spec})


def of_model(model: str) -> str:
    """Return the tables of a directory or of a known `hub:` model. Raises ConfigError."""
    name = hub.repository(model)
    return tables({name or Path(model).name: known_spec(name) or read_spec(Path(model))})


def tables(specs: Mapping[str, ModelSpec]) -> str:
    """Return tables of LoRA, full fine-tuning and serving."""
    zero = [f"ZeRO {stage}" for stage in STAGES]
    split = ["1 card", *(f"{cards} cards" for cards in SPLITS[1:])]
    parts: list[tuple[str, Sequence[str], Row]] = [
        (f"LoRA of rank {LORA_RANK}, {CARDS} cards", zero, partial(_trainer_row, LORA_RANK)),
        (f"Full fine-tuning, {CARDS} cards", zero, partial(_trainer_row, 0)),
        ("The least that vLLM starts with, split over", split, _vllm_row),
    ]
    return "\n".join(_table(title, columns, row, specs) for title, columns, row in parts)


def _table(title: str, columns: Sequence[str], row: Row, specs: Mapping[str, ModelSpec]) -> str:
    heads = ["model", "parameters, 10⁹", *columns]
    lines = [heads, ["---"] * len(heads)]
    for name, spec in specs.items():
        cells = (
            [row(spec, column, tokens) for tokens in LENGTHS] for column in range(len(columns))
        )
        lines.append([name, f"{spec.parameters / 1e9:.2f}", *map(_cell, cells)])
    return f"## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(sizes: Iterable[int]) -> str:
    return "–".join(f"{n / GIB:.0f}" for n in sizes)


def _trainer_row(rank: int, spec: ModelSpec, column: int, tokens: int) -> int:
    """Bytes of the trainer's first card, which has most."""
    targets = ATTENTION if spec.routed else Lora().targets
    stage = STAGES[column]
    trainer = Trainer(
        engine="deepspeed",
        ranks=CARDS,
        micro_batch_tokens=tokens,
        gradient_checkpointing=True,
        deepspeed=DeepSpeed(zero=stage, weights="model" if stage == 3 and not rank else "float32"),
        lora=Lora(rank=rank, targets=targets),
    )
    plan = memory_plans(_config(trainer, PolicyServer(name="p"), tokens), spec, Machine(None, {}))[
        0
    ]
    return sum(part.size for part in plan.parts if part.process.startswith(TRAINER))


def _vllm_row(spec: ModelSpec, column: int, tokens: int) -> int:
    """Bytes of each card of one vLLM."""
    args = [f"{TENSOR_PARALLEL}={SPLITS[column]}"]
    server = PolicyServer(name="p", engine="vllm", vllm=Vllm(args=args))
    return least_of_vllm(_config(Trainer(), server, tokens), server, spec)


def _config(trainer: Trainer, server: PolicyServer, tokens: int) -> Config:
    return Config(
        tasks={"task": Task()},
        model=Model(path="", device="cuda", dtype="bfloat16"),
        sampling=Sampling(max_tokens=tokens),
        trainer=trainer,
        policy=[server],
    )
