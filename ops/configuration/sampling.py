"""Checks that the tracks that `[sampling]` draws are served, and what they sample is trained."""

from collections.abc import Sequence

from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.errors import ConfigError, nearest
from agentrl.db.registry import tracks
from agentrl.db.registry.external_policies import track_of
from agentrl.envs import registry
from agentrl.serving.engines import EXTERNAL
from agentrl.trainer.algorithm import presets
from agentrl.workers.policies.pool import shares


def check_sampling(config: Config) -> None:
    """Check that constraints of `adaptive` can be satisfied, and tracks are served and trained."""
    sampling, followed = config.sampling, _followed(config)
    if sampling.strategy == "adaptive" and sampling.floor * len(followed) >= 1.0:
        raise ConfigError(
            f"sampling.floor: {len(followed)} tracks with {sampling.floor} each exceed 1",
            hint=f"set it below {1 / len(followed):.3g}",
        )
    for track in sampling.weights.keys() - followed if sampling.strategy == "weighted" else ():
        raise ConfigError(
            f"sampling.weights: no server follows {track}{nearest(track, followed)}",
            hint="use tracks of [[policy]]",
        )
    for track in _trained(config):
        check_lag(track, config.dispatch)


def check_lag(track: str, dispatch: Dispatch) -> None:
    """Check that the trainer does not discard every group with a token of the track as too old."""
    parsed = tracks.parse_track(track)
    lag = parsed.number - (parsed.kind == "refreshed")
    if lag > dispatch.max_lag:
        raise ConfigError(
            f"dispatch.max_lag: {dispatch.max_lag} is below {lag}, the updates by which {track} is "
            "behind: the trainer would discard all groups with its tokens, and wait for ever",
            hint=f"set it to at least {lag + dispatch.max_staleness}, or change policy.tracks",
        )


def check_sequences(config: Config) -> None:
    """Check that episodes are of one policy if the loss needs that; updates aside."""
    settings, sampling = presets.resolve_settings(config.trainer), config.sampling
    trained = _trained(config)
    if not settings.needs_one_policy or len(trained) < 2 or config.envs.names_worker():
        return
    for name, task in config.tasks.items():
        turns = task.max_turns or registry.source(name, task.options, task.source).max_turns
        if turns > sampling.sticky_steps:
            raise ConfigError(
                f'trainer.loss = "{settings.loss}" needs episodes of one policy, but up to {turns} '
                f"turns of {name} draw from {', '.join(trained)}",
                hint="set trainer.mixed_sequences = true, or "
                f'sampling.strategy = "current", or sampling.sticky_steps = {turns}',
            )


def _followed(config: Config) -> set[str]:
    """Return the tracks of the servers that act."""
    silent = config.silent_policies()
    return {
        track
        for server in config.policy_servers()
        if server.name not in silent
        for track in ([track_of(server.name)] if server.engine == EXTERNAL else server.tracks)
    }


def _trained(config: Config) -> Sequence[str]:
    """Return the tracks that are drawn and whose tokens are trained."""
    external = {track_of(each.name) for each in config.policy_servers() if each.engine == EXTERNAL}
    drawn = shares(sorted(_followed(config)), config.sampling)
    return [track for track, share in drawn.items() if share and track not in external]
