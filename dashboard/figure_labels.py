"""What each figure of an update is called on the pages, and what it means."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A figure of an update. `name`: as in `updates.metrics`. `share`: 0 to 1, shown in percent."""

    name: str
    title: str
    meaning: str
    share: bool = False


SECTIONS: dict[str, tuple[Figure, ...]] = {
    "Learning": (
        Figure(
            "success",
            "Success of trained episodes",
            "Share of the episodes in the update with a score of at least 1. Groups whose episodes "
            "all got the same reward are not among them: for success itself see the page Run.",
            share=True,
        ),
        Figure(
            "reward",
            "Reward of trained episodes",
            "Mean reward of the same episodes, after penalties for turns and tokens.",
        ),
        Figure(
            "loss",
            "Loss",
            "Policy loss. It stays near 0 while the policy learns; a jump is a warning.",
        ),
        Figure(
            "entropy",
            "Entropy, nats per token",
            "How undecided the policy is. A fall towards 0 means that it no longer explores.",
        ),
        Figure(
            "kl",
            "KL to the reference policy",
            "How far the policy has moved from the reference, in nats per token; only with a KL "
            "penalty.",
        ),
        Figure(
            "reverse_kl",
            "KL to the teacher",
            "How far the policy is from its teachers, in nats per token; only with a [[teacher]].",
        ),
        Figure("learning_rate", "Learning rate", "Step size of the optimizer at this update."),
        Figure(
            "zero_spread_share",
            "Groups without a learning signal",
            "Share of closed groups whose episodes all got the same reward. They are replaced.",
            share=True,
        ),
        Figure(
            "reward_std",
            "Spread of rewards within groups",
            "Mean standard deviation of the rewards in a group, with 0 for groups whose episodes "
            "all got the same. A fall while success is low is an early sign of collapse.",
        ),
        Figure(
            "stale_share",
            "Groups discarded as too old",
            "Share of closed groups that were sampled too many updates ago to be trained on.",
            share=True,
        ),
    ),
    "Stability": (
        Figure(
            "grad_norm",
            "Gradient norm",
            "Norm of the gradient before it is clipped to trainer.max_grad_norm.",
        ),
        Figure(
            "clip_fraction",
            "Clipped tokens",
            "Share of trained tokens whose probability moved beyond the clip range.",
            share=True,
        ),
        Figure(
            "max_ratio",
            "Largest importance ratio",
            "Largest probability of a token now, divided by that when it was sampled.",
        ),
        Figure(
            "effective_sample_size",
            "Effective sample size",
            "Share of the tokens that count after weighting by importance. Low: few dominate.",
            share=True,
        ),
        Figure(
            "mismatch_k3",
            "KL, sampling to training policy (k3)",
            "How far the policy that sampled is from the one that learns, in nats per token, by "
            "the estimator k3, which is never negative.",
        ),
        Figure(
            "mismatch_k1",
            "KL, sampling to training policy (k1)",
            "The same by the estimator k1, the mean difference of log-probabilities. Its sign may "
            "change.",
        ),
        Figure(
            "mismatch_abs",
            "Absolute Δlogp, sampling to training policy",
            "The mean absolute difference of log-probabilities, in nats per token.",
        ),
    ),
    "Staleness": (
        Figure(
            "staleness",
            "Staleness, updates",
            "Mean number of updates between sampling a step and training on it.",
        ),
        Figure("staleness_fresh", "Staleness of the track current", "The same, of fresh steps."),
        Figure(
            "staleness_lagged",
            "Staleness of lagged tracks",
            "The same, of steps that an older policy sampled on purpose.",
        ),
        Figure(
            "mismatch_k3_fresh",
            "KL (k3) of fresh tokens",
            "As under Stability, of tokens of the track current. If this is high too, server and "
            "trainer compute different probabilities.",
        ),
        Figure("mismatch_k3_lagged", "KL (k3) of lagged tokens", "Of tokens of lagged tracks."),
        Figure(
            "effective_sample_size_lagged",
            "Effective sample size of lagged tokens",
            "As under Stability, of tokens of lagged tracks.",
            share=True,
        ),
    ),
    "Speed": (
        Figure(
            "trained_tokens_per_s",
            "Trained tokens per second",
            "Trained tokens divided by the seconds since the previous update.",
        ),
        Figure(
            "trained_episodes_per_s",
            "Trained episodes per second",
            "Trained episodes divided by the seconds since the previous update.",
        ),
        Figure("since_s", "Seconds between updates", "From one commit to the next, with waiting."),
        Figure(
            "update_s",
            "Seconds of an update",
            "From the arrival of its groups to the commit; also the wait for the commit before.",
        ),
        Figure(
            "commit_wait_s",
            "Seconds waiting for a commit",
            "How long the optimizer step waited until the former update was committed.",
        ),
        Figure("trained_tokens", "Trained tokens", "Sampled tokens that the update learned from."),
        Figure("trained_episodes", "Trained episodes", "Episodes that the update learned from."),
    ),
    "Machine": (
        Figure(
            "cpu_share",
            "Processors in use",
            "Of the trainer's machine, by all programs, since the previous update.",
            share=True,
        ),
        Figure(
            "memory_share", "Memory in use", "Of the trainer's machine, at the commit.", share=True
        ),
        Figure(
            "gpu_share",
            "GPUs computing",
            "Share of the time in which a GPU of the trainer's machine computed, by nvidia-smi.",
            share=True,
        ),
        Figure("gpu_memory_share", "GPU memory in use", "Mean over the same GPUs.", share=True),
        Figure(
            "micro_batch_peak_bytes",
            "Peak memory of a pass, bytes",
            "Most that the trainer's tensors held on one GPU during forward and backward passes.",
        ),
        Figure(
            "micro_batch_tokens",
            "Most tokens of a pass",
            "trainer.micro_batch_tokens, or fewer where a GPU's memory is short; "
            "at least the longest trajectory.",
        ),
    ),
}
OTHER = "Other"
KNOWN = {figure.name: figure for section in SECTIONS.values() for figure in section}
# The figure whose chart shows an alarm, where the two have different names.
ALARM_FIGURES = {
    "mismatch_kl": "mismatch_k3",
    "entropy_fall": "entropy",
    "reward_std_fall": "reward_std",
    "skipped": "loss",
    "snapshot_failed": "update_s",
}


def figure_of(name: str) -> Figure:
    """Return the figure of this name; one without a label keeps its name."""
    return KNOWN.get(name, Figure(name, name.replace("_", " "), ""))
