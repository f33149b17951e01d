"""The turns of trajectories: their rewards, states and tokens, and the advantages of their tokens.

trajectories of a group ─▶ MemberTurns ─▶ credit ─▶ advantage of each turn ─▶ one entry a token
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl.core.trajectory import Trajectory
from agentrl.core.types import ABNORMAL, ABORT
from agentrl.trainer.algorithm.advantages import Doubles, Floats, group_advantages
from agentrl.trainer.algorithm.credit.credit_interface import MemberTurns
from agentrl.trainer.algorithm.credit.registry import known_credits
from agentrl.trainer.algorithm.presets import Settings


def shaped_reward(trajectory: Trajectory, abnormal_reward: float | None) -> float:
    """Return the reward for training; `abnormal_reward` replaces that of an abnormal last turn."""
    if abnormal_reward is not None and trajectory.status in ABNORMAL:
        rewards = trajectory.step_rewards()
        if rewards:
            rewards[trajectory.last_step] = 0.0
        return math.fsum([*rewards, abnormal_reward])
    return trajectory.reward


def trained_reward(trajectory: Trajectory, settings: Settings) -> float:
    """Return `shaped_reward` minus the penalties for steps and sampled tokens."""
    cost = settings.turn_penalty * trajectory.turns
    cost += settings.token_penalty * int(trajectory.mask().sum())
    return shaped_reward(trajectory, settings.abnormal_reward) - cost


def token_advantages(members: Sequence[Trajectory], settings: Settings) -> list[Floats]:
    """Return the advantages of all tokens of a group's members, each [T] of its trajectory.

    A token before a turn's sampled ones has the advantage of that turn; those after the last turn
    have that of the last. A trajectory with branches is one turn: its turns are in no single order.
    If its branches have rewards of their own, each of them is compared as if it were a member, and
    a step has the mean of the branches that it leads to.
    """
    samples = [_read_samples(each, settings) for each in members]

    def compare(values: Sequence[float]) -> Doubles:
        return group_advantages([values], settings.advantage)[0].astype(np.float64)

    assign = known_credits()[settings.credit].assign
    flat = [turns for each in samples for turns in each]
    found = iter(assign(flat, compare, settings.credit_options))
    return [
        _spread(member, [next(found) for _ in turns])
        for member, turns in zip(members, samples, strict=True)
    ]


def branch_rewards(trajectory: Trajectory) -> list[float]:
    """Return the rewards of the branches that have one of their own."""
    return [each.reward for each in trajectory.branch_rewards or ()]


def _read_samples(trajectory: Trajectory, settings: Settings) -> list[MemberTurns]:
    """Return the turns of each branch that has a reward of its own, or of the whole trajectory."""
    whole = read_turns(trajectory, settings)
    cost = trajectory.reward - whole.reward
    samples = []
    for branch in trajectory.branch_rewards or ():
        step, reward = trajectory.steps[branch.step], branch.reward - cost
        state = trajectory.tokens()[step.context : step.end].tobytes()
        samples.append(MemberTurns(reward, np.array([reward]), (state,)))
    return samples or [whole]


def _spread(trajectory: Trajectory, advantages: Sequence[Doubles]) -> Floats:
    """Return the advantage of each token, [T]. advantages: of each sample, [K] of its turns."""
    if not trajectory.branch_rewards:
        return np.repeat(advantages[0].astype(np.float32), np.diff(_bounds(trajectory)))
    through: list[list[float]] = [[] for _ in trajectory.steps]
    for branch, (advantage,) in zip(trajectory.branch_rewards, advantages, strict=True):
        for step in trajectory.path(branch.step):
            through[step].append(advantage)
    shared = float(np.mean(advantages))  # of a step that leads to no branch with a reward
    means = [np.mean(each) if each else shared for each in through]
    ends = [step.end for step in trajectory.steps[:-1]]
    return np.repeat(np.array(means, np.float32), np.diff([0, *ends, len(trajectory)]))


def read_turns(trajectory: Trajectory, settings: Settings) -> MemberTurns:
    """Return the turns of a trajectory, with rewards as trained.

    Without steps, or with branches, it is one turn.
    """
    reward = trained_reward(trajectory, settings)
    bounds, tokens = _bounds(trajectory), trajectory.tokens()
    if not trajectory.steps or trajectory.has_branches:
        return MemberTurns(reward, np.array([reward]), (tokens.tobytes(),))
    numbers = _turn_numbers(trajectory)
    rewards: Doubles = np.bincount(numbers, weights=trajectory.step_rewards()).astype(np.float64)
    if settings.abnormal_reward is not None and trajectory.status in ABNORMAL:
        rewards[-1] = settings.abnormal_reward
    counts = np.concatenate(([0], np.cumsum(trajectory.mask(), dtype=np.int64)))
    sampled = np.diff(counts[bounds])
    costs: Doubles = settings.turn_penalty + settings.token_penalty * sampled.astype(np.float64)
    firsts = np.unique(numbers, return_index=True)[1]
    starts = [trajectory.steps[step].start for step in firsts]
    states = tuple(
        tokens[begin:start].tobytes() for begin, start in zip(bounds[:-1], starts, strict=True)
    )
    return MemberTurns(reward, rewards - costs, states)


def _turn_numbers(trajectory: Trajectory) -> NDArray[np.int64]:
    """Return the turn of each step, [S]; an aborted step and the next one belong to one turn."""
    ended = [step.finish_reason != ABORT for step in trajectory.steps[:-1]]
    return np.cumsum([0, *ended])


def _bounds(trajectory: Trajectory) -> list[int]:
    """Return where the K turns begin and end, [K + 1]; tokens read belong to the turn after."""
    steps = () if trajectory.has_branches else trajectory.steps[:-1]
    ends = [step.end for step in steps if step.finish_reason != ABORT]
    return [0, *ends, len(trajectory)]
