"""Verbs that look again at what was recorded: replay, whatif."""

from pathlib import Path

import typer

from agentrl.cli.processes import CONFIG

EPISODE = typer.Argument("", help="The episode's id; none with --all.", show_default=False)
POLICY = "Who goes on: as `agentrl eval` names a policy."
UPDATES = typer.Argument(..., help="Versions, or ids of updates.", show_default=False)
SET = typer.Option([], "--set", help="section.key=value; repeatable.", show_default=False)
OUT = typer.Option(None, "--out", help="Write the new trajectory, as it travels.")


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command()(replay)
    app.command()(whatif)


def replay(
    config: Path = CONFIG,
    episode: str = EPISODE,
    run: str = typer.Option("", "--all", help="Replay the newest episodes of this run."),
    limit: int = typer.Option(100, min=1, help="Episodes of --all."),
    policy: str = typer.Option("", "--policy", help=POLICY),
    from_step: int | None = typer.Option(None, min=0, help="The first step that it samples."),
    temperature: float | None = typer.Option(None, min=0.0, help="Of --policy; the file's."),
    greedy: bool = typer.Option(False, "--greedy", help="As --temperature 0."),
    repeats: int = typer.Option(1, min=1, help="Continuations of --policy."),
    out: Path | None = OUT,
    as_json: bool = typer.Option(False, "--json", help="JSON, no progress."),
) -> None:
    """Play recorded actions against a fresh environment and tell what differs.

    Exit code 1 where anything differs. With --policy another policy goes on from a step; nothing
    is stored.

    Example: agentrl replay configs/quickstart.toml --all quickstart --limit 20
    """
    if bool(episode) == bool(run):
        raise typer.BadParameter("name an episode, or --all RUN")
    if policy:
        if run or from_step is None:
            raise typer.BadParameter("--policy needs an episode and --from-step")
        if out is not None and repeats > 1:
            raise typer.BadParameter("--out writes one trajectory, of --repeats 1")
        from agentrl.ops.replay.branch_episode import Wish, go_on

        wish = Wish(policy, from_step, 0.0 if greedy else temperature, repeats, out)
        go_on(config, episode, wish, as_json=as_json)
        return
    if from_step is not None or greedy or temperature is not None or repeats > 1 or out:
        raise typer.BadParameter("--from-step and what follows it need --policy")
    from agentrl.ops.replay.command import replay as play
    from agentrl.ops.replay.command import replay_all

    if not (
        replay_all(config, run, limit, as_json=as_json)
        if run
        else play(config, episode, as_json=as_json)
    ):
        raise typer.Exit(1)


def whatif(
    config: Path = CONFIG,
    updates: list[str] = UPDATES,
    changes: list[str] = SET,
    score: bool = typer.Option(True, help="Score the tokens with the checkpoint before it."),
    as_json: bool = typer.Option(False, "--json", help="One JSON array."),
) -> None:
    """Recompute stored updates under another configuration.

    Advantages, shares of the loss, weights, and groups without spread or too stale, by task: what
    they were under the run's own configuration → what they are under the file's with --set.

    Example: agentrl whatif configs/quickstart.toml 1 2 --set trainer.normalise=none
    """
    from agentrl.ops.replay.whatif import whatif as recompute

    recompute(config, updates, changes, score=score, as_json=as_json)
