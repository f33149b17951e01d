"""Collects the steps of one episode, on all its branches, and makes its trajectory of them."""

import math
from collections.abc import Mapping

import msgspec

from agentrl.core.trajectory import BranchReward, PolicyRef, StepRecord, Trajectory
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import Outcome
from agentrl.workers.conversation.branches import Branches


class TrajectoryBuilder:
    """The steps of an episode so far, and the table of the policies that sampled them.

    `max_tokens`: the most of a branch.
    """

    def __init__(
        self, claimed: ClaimedEpisode, run_id: str, branches: Branches, max_tokens: int
    ) -> None:
        self._claimed = claimed
        self._run_id = run_id
        self._branches = branches
        self._max_tokens = max_tokens
        self._policies: list[PolicyRef] = []
        self._steps: list[tuple[int, StepRecord]] = []  # with their branches

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: StepRecord) -> None:
        """Append a step to the current branch."""
        self._steps.append((self._branches.number, step))

    def last_end(self) -> int:
        """Return where the sampled tokens of the current branch's last step end."""
        number = self._branches.number
        return max((step.end for branch, step in self._steps if branch == number), default=0)

    def policy_index(self, policy: PolicyRef) -> int:
        """Return the index of a policy in the table, to which it adds a new one."""
        if policy not in self._policies:
            self._policies.append(policy)
        return self._policies.index(policy)

    def policy(self, index: int) -> PolicyRef:
        return self._policies[index]

    def build(
        self, outcome: Outcome, started: float, finished: float, metrics: Mapping[str, float]
    ) -> Trajectory:
        """Return the trajectory. `started`, `finished`: seconds on the database's clock.

        `metrics`: of sampling; those of the environment are in the outcome.
        """
        arrays, steps, last_steps = self._branches.flatten(self._steps, self._max_tokens)
        branch_rewards = tuple(
            BranchReward(step=last_steps[turn - 1], reward=reward)
            for turn, reward in outcome.branch_rewards.items()
        )
        return Trajectory(
            run_id=self._run_id,
            group_id=self._claimed.group_id,
            episode_id=self._claimed.episode_id,
            member=self._claimed.member,
            attempt=self._claimed.attempt,
            fence=self._claimed.fence,
            task=self._claimed.task,
            item_id=self._claimed.item_id,
            status=outcome.status,
            reward=math.fsum([*(step.reward for step in steps), outcome.reward]),
            score=outcome.score,
            token_ids=arrays.token_ids,
            loss_mask=arrays.loss_mask,
            logprobs=arrays.logprobs,
            policy_index=arrays.policy_index,
            policies=tuple(self._policies),
            steps=tuple(steps),
            started_at=started,
            finished_at=finished,
            metrics={**outcome.metrics, **metrics},
            branch_rewards=branch_rewards or msgspec.UNSET,
        )
