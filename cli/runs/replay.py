"""Commands that replay recorded episodes and recompute stored updates: replay, whatif."""

from pathlib import Path

import typer

from agentrl.cli.options import CONFIG, JSON_ARRAY, MOST_ROWS, SET, TEMPERATURE, choose_temperature

EPISODE = typer.Argument(
    "", metavar="EPISODE", help="Id of the episode. Omit it with --all.", show_default=False
)
POLICY = "Policy that continues the episode, named as in `agentrl eval`."
UPDATES = typer.Argument(
    ..., metavar="UPDATE", help="Versions or ids of the updates.", show_default=False
)
OUT = typer.Option(
    None, "--out", help="File for the new trajectory (encoded message). Default: none."
)

LIMIT = 100  # episodes of --all


def add(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(replay)
    app.command()(whatif)


def replay(
    config: Path = CONFIG,
    episode: str = EPISODE,
    run: str = typer.Option(
        "", "--all", metavar="RUN", help="Name of the run whose newest episodes are replayed."
    ),
    limit: int | None = typer.Option(
        None, min=1, max=MOST_ROWS, help="Largest number of episodes for --all. Default: 100."
    ),
    policy: str = typer.Option("", "--policy", help=POLICY),
    from_step: int | None = typer.Option(
        None, min=0, help="First step that --policy samples (counted from 0)."
    ),
    temperature: float | None = TEMPERATURE,
    greedy: bool = typer.Option(False, "--greedy", help="Same as --temperature 0."),
    repeats: int = typer.Option(1, min=1, help="Number of continuations by --policy."),
    out: Path | None = OUT,
    as_json: bool = typer.Option(False, "--json", help="Print JSON and no progress."),
) -> None:
    """Replay recorded actions in a fresh environment and compare.

    The exit code is 1 if an observation or the reward differs. With --policy and --from-step,
    another policy continues the episode from that step. Nothing is stored.

    Example: agentrl replay runs/latest/config.toml dbbench-0-3
    """
    if bool(episode) == bool(run):
        raise typer.BadParameter("give either an episode or --all RUN")
    if episode and limit is not None:
        raise typer.BadParameter("--limit needs --all")
    if policy:
        if run or from_step is None:
            raise typer.BadParameter("--policy also needs EPISODE and --from-step")
        if out is not None and repeats > 1:
            raise typer.BadParameter("--out writes one trajectory and needs --repeats 1")
        from agentrl.ops.replay.branch_episode import BranchRequest, branch_episode

        chosen = choose_temperature(temperature, greedy=greedy)
        request = BranchRequest(policy, from_step, chosen, repeats, out)
        branch_episode(config, episode, request, as_json=as_json)
        return
    if from_step is not None or greedy or temperature is not None or repeats > 1 or out:
        raise typer.BadParameter(
            "--from-step, --temperature, --greedy, --repeats and --out need --policy"
        )
    from agentrl.ops.replay.command import replay as play
    from agentrl.ops.replay.command import replay_all

    if not (
        replay_all(config, run, limit or LIMIT, as_json=as_json)
        if run
        else play(config, episode, as_json=as_json)
    ):
        raise typer.Exit(1)


def whatif(
    config: Path = CONFIG,
    updates: list[str] = UPDATES,
    changes: list[str] = SET,
    score: bool = typer.Option(
        True, help="Compute log-probabilities with the checkpoint before each update."
    ),
    as_json: bool = JSON_ARRAY,
) -> None:
    """Recompute stored updates with another configuration.

    For each task the report shows advantages, shares of the loss, token weights, and how many
    groups had equal rewards or were too old: first with the configuration stored with the run, then
    with the file CONFIG and --set.

    Example: agentrl whatif runs/latest/config.toml 1 2 --set trainer.normalise=none
    """
    from agentrl.ops.replay.whatif import whatif as recompute

    recompute(config, updates, changes, score=score, as_json=as_json)
