"""How episodes are admitted, run and sampled."""

from typing import Annotated, Literal

from msgspec import Meta

from agentrl.core.config.sections.base import AtLeast0, Natural, Positive, Seconds, Section, Share


class Dispatch(Section, frozen=True):
    """Admission of groups, and when an episode is sent again."""

    groups_per_update: Positive = 8
    """Groups per update. At most (max_staleness + 1) * groups_per_update are open."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """Episodes per group, all of the same item."""
    max_staleness: Natural = 4
    """Largest age of a token of the track `current`, in updates. Groups with older tokens are
    discarded."""
    max_lag: Natural = 64
    """The same limit for the tokens of all other tracks. A track further behind is refused."""
    claim_timeout_s: Seconds = 30.0
    """A queued episode that no worker has claimed after this time is sent again."""
    body_timeout_s: Seconds = 60.0
    """A finished episode whose trajectory is missing after this time is played again."""
    max_attempts: Positive = 3
    """Attempts at one episode before it fails."""
    lease_s: Seconds = 15.0
    """After this time without renewal another dispatcher can take over. At least 2 * tick_s."""
    tick_s: Seconds = 0.2
    """Time between two rounds of the dispatcher."""
    retire_at: Share | None = None
    """An item whose recent success reaches this share is not trained on again."""
    window: tuple[Share, Share] | None = None
    """Range [low, high] of recent success. Items outside it are paused."""
    window_pause: Positive = 2
    """Passes through the split for which an item is paused."""
    mixing: Literal["fixed", "progress"] = "fixed"
    """How tasks share the groups: by weight (`fixed`), or by weight times progress, the
    absolute change of the task's recent success (`progress`)."""
    mixing_floor: Share = 0.05
    """Smallest share of a task with `mixing = "progress"`."""
    mixing_groups: Positive = 16
    """Progress compares a task's last N groups with the N groups before them. This is N."""


class Worker(Section, frozen=True):
    """Workers, which run the episodes."""

    concurrency: Positive = 64
    """Episodes of one worker process at the same time."""
    beat_s: Seconds = 2.0
    """Time between two heartbeats."""
    lease_s: Seconds = 15.0
    """After this time without a heartbeat a worker's episodes are given to others. At least
    2 * beat_s."""
    attempt_deadline_s: Seconds = 600.0
    """Time limit of one attempt. Choose it so that a policy server can sample `sampling.max_tokens`
    tokens in this time."""
    policy_wait_s: Seconds = 600.0
    """How long a step waits for a live policy."""
    completion_timeout_s: Seconds = 600.0
    """Time limit of one completion, within the attempt's."""
    journal: Literal["steps", "off"] = "off"
    """`steps`: an episode whose worker ended continues where it was. `off`: it is played from the
    start."""


class Sampling(Section, frozen=True):
    """Which policy samples a step, and how (docs/sampling.md)."""

    strategy: Literal["current", "mixed", "uniform", "weighted", "adaptive"] = "mixed"
    """How the track of a step is drawn."""
    stale_share: Share = 0.25
    """Probability that `mixed` draws a lagged track."""
    weights: dict[str, AtLeast0] = {}
    """Weight of each track with `weighted`."""
    sticky_steps: Positive = 1
    """Steps for which a drawn policy is kept."""
    floor: Share = 0.05
    """Smallest weight of a live track with `adaptive`."""
    min_effective_sample_size: Share = 0.5
    """Smallest effective sample size that `adaptive` accepts, as a share of the batch's tokens."""
    max_kl: AtLeast0 = 0.1
    """Largest KL(μ ‖ π) that `adaptive` accepts, in nats per token. μ sampled the tokens, π is
    trained."""
    window_groups: Positive = 64
    """Groups of each task from which `adaptive` learns."""
    temperature: AtLeast0 = 1.0
    """Sampling temperature: 0.01 to 100, or 0: greedy."""
    max_step_tokens: Positive = 64
    """Most tokens sampled in one step."""
    max_tokens: Positive = 2048
    """Most tokens in one trajectory: prompts, answers of the environment and sampled tokens."""
