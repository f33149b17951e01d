"""Commands that create and export policies: warmstart, export."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agentrl.cli.processes import CONFIG

if TYPE_CHECKING:
    from agentrl.ops.warmstart.cloning_trainer import Phase

TARGET_HELP = (
    "A directory, or with --config a checkpoint id, RUN@VERSION or RUN@latest. "
    "With --dataset or --sft: configuration file of the run."
)
TARGET = typer.Argument(..., metavar="CHECKPOINT", help=TARGET_HELP, show_default=False)
OUT_HELP = "Output directory; with --sft the output file. It must not exist yet."
OUT = typer.Argument(..., metavar="OUT", help=OUT_HELP, show_default=False)
OPTIONAL = typer.Option(
    None, "--config", help="Configuration file whose database lists the checkpoint."
)
OUT_DIRECTORY = typer.Option(..., "--out", help="Output directory.", show_default=False)
MODEL = typer.Option(None, "--model", help="Model to start from. Default: a new tiny model.")
EPISODES_FILE = typer.Option(
    None, "--imported", help="JSONL file with recorded episodes. Default: the experts play."
)
PHASES = typer.Option(
    ["1000:0.1", "240:0.4:0.35"],
    "--phase",
    help="Training phase STEPS[:NOISE[:UNTIL[:RATE]]]. STEPS: optimizer steps. NOISE: probability "
    "of an expert error per turn, a number or TASK=NUMBER,…. UNTIL: sampled success that ends the "
    "phase early. RATE: learning rate. Repeatable.",
)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(export)
    app.command()(warmstart)


def export(
    checkpoint: str = TARGET,
    out: Path = OUT,
    config: Path | None = OPTIONAL,
    merge_lora: bool = typer.Option(
        False, "--merge-lora", help="Merge a LoRA adapter into its base model."
    ),
    dataset: bool = typer.Option(
        False, "--dataset", help="Export the run's episodes as a Hugging Face dataset (Parquet)."
    ),
    sft: bool = typer.Option(
        False, "--sft", help="Export the run's episodes as chat JSONL for fine-tuning."
    ),
    run: str = typer.Option(
        "", "--run", help="Run whose episodes are exported. Default: the configuration's."
    ),
    task: str = typer.Option("", "--task", help="Task of the episodes. Default: all."),
    min_reward: float | None = typer.Option(
        None, "--min-reward", help="Lowest reward of an episode. Default: any."
    ),
) -> None:
    """Export a checkpoint as a model directory, or a run's episodes.

    Example: agentrl export quickstart@latest exported --config configs/quickstart.toml
    """
    if dataset and sft:
        raise typer.BadParameter("give either --dataset or --sft")
    if not (dataset or sft) and (run or task or min_reward is not None):
        raise typer.BadParameter("--run, --task and --min-reward need --dataset or --sft")
    if dataset or sft:
        from agentrl.ops.export.episodes import ExportRequest, export_dataset, export_sft

        request = ExportRequest(Path(checkpoint), out, run, task, min_reward)
        print((export_sft if sft else export_dataset)(request))
        return
    from agentrl.ops.runs.export import export as write

    print(write(checkpoint, out, config, merge_lora=merge_lora))


def warmstart(
    config: Path = CONFIG,
    out: Path = OUT_DIRECTORY,
    model: Path | None = MODEL,
    imported: Path | None = EPISODES_FILE,
    phase: list[str] = PHASES,
    episodes: int = typer.Option(6000, min=1, help="Expert episodes per task and phase."),
    batch_tokens: int = typer.Option(2048, min=1, help="Tokens per optimizer step."),
    measured: int = typer.Option(
        200, min=1, help="Held-out items per task in the final evaluation."
    ),
    seed: int = typer.Option(0, help="Seed of demonstrations and training."),
    threads: int = typer.Option(1, min=1, help="Threads that torch uses."),
    device: str = typer.Option(
        "", "--device", help="Device that trains and plays. Default: model.device of CONFIG."
    ),
) -> None:
    """Create a starting policy by behaviour cloning.

    The policy imitates the tasks' experts or imported episodes. Its weights have the data type
    model.dtype of CONFIG. After an interruption the same command continues.

    Example: agentrl warmstart configs/quickstart.toml --out models/mine --seed 7
    """
    from agentrl.core import config_loading
    from agentrl.ops.warmstart.command import make
    from agentrl.ops.warmstart.warmstart import WarmstartOptions

    file = config_loading.load(config)
    make(
        WarmstartOptions(
            out=out,
            tasks=file.tasks,
            phases=tuple(_phase(text, list(file.tasks)) for text in phase),
            model=model,
            imported=imported,
            style=file.model.call_style,
            episodes=episodes,
            batch_tokens=batch_tokens,
            measured=measured,
            seed=seed,
            threads=threads,
            dtype=file.model.dtype,
            device=device or file.model.device,
            command=shlex.join(["agentrl", *sys.argv[1:]]),
        )
    )


def _phase(text: str, tasks: list[str]) -> "Phase":
    """Parse a value of --phase. Raises ConfigError."""
    from agentrl.core.errors import ConfigError
    from agentrl.ops.warmstart.cloning_trainer import Phase

    steps, noise, until, rate = (*text.split(":", 3), "", "", "")[:4]
    try:
        return Phase(
            noise=_noise(noise, tasks),
            steps=int(steps),
            until=float(until) if until else None,
            rate=float(rate) if rate else None,
        )
    except ValueError as error:
        raise ConfigError(
            f"--phase {text}: text where a number is expected",
            hint="write STEPS[:NOISE[:UNTIL[:RATE]]], such as 1000:0.1",
        ) from error


def _noise(text: str, tasks: list[str]) -> dict[str, float]:
    from agentrl.core.errors import require_known

    if "=" not in text:
        return dict.fromkeys(tasks, float(text or 0.0))
    pairs = [pair.partition("=") for pair in text.split(",")]
    for task, _, _ in pairs:
        require_known("--phase", task, tasks)
    return {task: float(share) for task, _, share in pairs}
