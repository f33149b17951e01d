"""A finished episode as tokens; `trajectory_body.py` decodes and checks it.

Token arrays are encoded as little-endian bytes and read without a copy by `numpy.frombuffer`.
"""

import hashlib
import math
from itertools import pairwise
from numbers import Real

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentrl.core.types import ABORT, Status

LARGEST = float(np.finfo(np.float32).max)  # of rewards, which are trained on in float32


def read_number(value: object, largest: float = LARGEST) -> float:
    """Convert a real number, also NumPy's, to a float. Raises ValueError beyond ±`largest`."""
    try:
        if isinstance(value, Real) and abs(number := float(value)) <= largest:
            return number
    except OverflowError:  # an int
        pass
    raise ValueError(f"no number up to {largest:g}")


class BranchPoint(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Where the branch of a step begins in the trajectory.

    `forked_from`: of a branch's first step: the step whose end the branch continues; None: it
    begins a conversation.
    """

    begin: int
    forked_from: int | None = None


class StepRecord(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """One policy call and the environment's answer.

    `start`, `end`: span of the sampled tokens in the trajectory. `requested_at`: seconds since the
    epoch on the database's clock. `call`: the parsed calls as JSON text. `answer`: the
    environment's answer. `redrawn`: policies that refused or died before this one answered. A step
    that ends as `abort` has no call: the next step continues the same turn. `reward`: of its turn,
    if the turn did not end the episode; read it with `Trajectory.step_rewards`.

    `branch`: None: the first one. `trained`: False: a rule of the task leaves it out of the loss.

    From sixteen fields on msgspec encodes, and hashes, those without a value otherwise.
    """

    policy_index: int
    start: int
    end: int
    prompt_tokens: int
    temperature: float
    requested_at: float
    policy_s: float
    env_s: float
    finish_reason: str
    call: str
    answer: str
    redrawn: int = 0
    reward: float = 0.0
    branch: BranchPoint | None = None
    trained: bool = True

    @property
    def context(self) -> int:
        """Return where its prompt begins; the steps of one context are a branch."""
        return self.branch.begin if self.branch else 0

    @property
    def forked_from(self) -> int | None:
        return self.branch.forked_from if self.branch else None


class PolicyRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A policy that sampled a part of a trajectory. `trainable`: its log-probabilities are usable.

    Tokens of other policies are masked: loss mask and log-probability are 0 in their spans.
    """

    checkpoint_id: str
    version: int
    track: str
    server_id: str
    trainable: bool = True

    @property
    def masked(self) -> bool:
        return not self.trainable


class BranchReward(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The reward of the branch that ends with a step, beside that of the whole episode."""

    step: int
    reward: float


class Judgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The score that a judge gave an episode. `judge`: the model's name, or the function's.

    `reply`: of the model; empty for a function. `environment_reward`: of the episode before it.
    `turn_scores`: one for each turn, whose mean is `score`; UNSET: it scored the episode.
    """

    judge: str
    score: float
    reply: str
    environment_reward: float
    turn_scores: tuple[float, ...] | msgspec.UnsetType = msgspec.UNSET


class Trajectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A finished episode as tokens. Arrays have one entry per token, all of the same length T.

    They hold its branches one after the other, each with its whole context, and `steps` are in the
    order of their tokens. A branch that continues a step repeats the tokens up to the step's end,
    with the mask 0: each token that was sampled is in the loss once.

    `token_ids` int32, `loss_mask` uint8 (1 = sampled by a trainable policy), `logprobs` float32
    (natural log, behaviour, 0 where the mask is 0), `policy_index` uint8 into `policies` (0 outside
    the steps' spans). `judgement`: UNSET without a judge, `branch_rewards`: UNSET if all branches
    share the episode's reward, so that they are neither encoded nor hashed.
    """

    run_id: str
    group_id: str
    episode_id: str
    member: int
    attempt: int
    fence: int
    task: str
    item_id: str
    status: Status
    reward: float
    score: float
    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    policy_index: bytes
    policies: tuple[PolicyRef, ...]
    steps: tuple[StepRecord, ...]
    started_at: float
    finished_at: float
    metrics: dict[str, float] = {}
    judgement: Judgement | msgspec.UnsetType = msgspec.UNSET
    branch_rewards: tuple[BranchReward, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def environment_reward(self) -> float:
        """Return the reward without the judge's."""
        return self.judgement.environment_reward if self.judgement else self.reward

    def __len__(self) -> int:
        return len(self.loss_mask)

    @property
    def turns(self) -> int:
        """Return the number of turns with an answer; an aborted step is not a turn."""
        return sum(step.finish_reason != ABORT for step in self.steps)

    @property
    def has_branches(self) -> bool:
        """Return whether it has several branches."""
        return any(step.context for step in self.steps)

    @property
    def last_step(self) -> int:
        """Return the number of the step that ended the episode. Raises IndexError without steps."""
        if not self.has_branches:
            return range(len(self.steps))[-1]
        return max(range(len(self.steps)), key=lambda n: (self.steps[n].requested_at, n))

    def step_rewards(self) -> list[float]:
        """Return the reward of each step; their sum is the episode's.

        The last step has what the others leave: all of it in a body without rewards of steps.
        """
        rewards = [step.reward for step in self.steps]
        if rewards:
            rewards[self.last_step] += self.reward - math.fsum(rewards)
        return rewards

    def judge_scores(self) -> list[float | None]:
        """Return the judge's score of the turn that each step ends; None where it gave none."""
        scores = iter((self.judgement and self.judgement.turn_scores) or ())
        return [None if step.finish_reason == ABORT else next(scores, None) for step in self.steps]

    def branch_lengths(self) -> list[int]:
        """Return the number of tokens of each branch, in order; at least one."""
        begins = sorted({0, *(step.context for step in self.steps)})
        return [end - begin for begin, end in pairwise([*begins, len(self)])]

    def parents(self) -> list[int | None]:
        """Return of each step the one that it follows; None: it begins a conversation."""
        steps = self.steps
        return [
            number - 1 if number and steps[number - 1].context == step.context else step.forked_from
            for number, step in enumerate(steps)
        ]

    def path(self, step: int) -> list[int]:
        """Return the steps that lead to one, with it, from the last to the first."""
        parents, found = self.parents(), [step]
        while (parent := parents[found[-1]]) is not None:
            found.append(parent)
        return found

    @property
    def sha256(self) -> str:
        """Its identity, whatever compressed it: hex SHA-256 of its MessagePack, taken once.

        Not a `cached_property`: until Python 3.12 all trajectories of a process share its lock.
        """
        known: dict[str, str] = self.__dict__
        if "sha256" not in known:
            known["sha256"] = hashlib.sha256(_encoder.encode(self)).hexdigest()
        return known["sha256"]

    def tokens(self) -> NDArray[np.int32]:
        return np.frombuffer(self.token_ids, dtype="<i4")

    def mask(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.loss_mask, dtype=np.uint8)

    def behaviour(self) -> NDArray[np.float32]:
        return np.frombuffer(self.logprobs, dtype="<f4")

    def sampled_by(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.policy_index, dtype=np.uint8)


_encoder = msgspec.msgpack.Encoder()
