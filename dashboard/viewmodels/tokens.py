"""A trajectory's tokens, span by span, and the colours that tell of them: plain values.

Colours are told apart by colour-blind people and on light and dark ground; hovering says the same
in words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from agentrl.core.trajectory import Trajectory
from agentrl.dashboard.markup import Token
from agentrl.dashboard.vocabulary import Vocabulary

ORANGE, BLUE = (213, 94, 0), (0, 114, 178)
POLICIES = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0))
STRONGEST = 0.75  # opacity; text stays readable over it
MODES = ("probability", "advantage", "policy")


@dataclass(frozen=True, slots=True)
class TokenView:
    """A trajectory ready to show. `texts`: [T]."""

    trajectory: Trajectory
    texts: Sequence[str]
    special: frozenset[int]
    advantage: float | None

    def observation_tokens(self, number: int) -> list[Token]:
        """Return the tokens between the previous step and this one, or after the last step."""
        steps = self.trajectory.steps
        start = steps[number - 1].end if number else 0
        end = steps[number].start if number < len(steps) else len(self.trajectory)
        return [Token(self.texts[at], special=self._special(at)) for at in range(start, end)]

    def step_tokens(self, number: int, mode: str) -> list[Token]:
        """Return the tokens of a step, coloured by `mode`: one of MODES."""
        step = self.trajectory.steps[number]
        return [self._token(at, mode) for at in range(step.start, step.end)]

    def _token(self, at: int, mode: str) -> Token:
        body = self.trajectory
        learned = bool(body.loss_mask[at])
        policy = body.policies[body.policy_index[at]]
        chance = exp(float(body.behaviour()[at])) if learned else None
        parts = [f"token {int(body.tokens()[at])}", policy_name(policy.version, policy.track)]
        parts.append("not in the loss" if chance is None else f"probability {chance:.3f}")
        if self.advantage is not None and learned:
            parts.append(f"advantage {self.advantage:+.3f}")
        colour = {
            "probability": "" if chance is None else chance_text(chance),
            "advantage": advantage_text(self.advantage)
            if learned and self.advantage is not None
            else "",
            "policy": of_policy(body.policy_index[at]),
        }[mode]
        return Token(self.texts[at], colour, " · ".join(parts), self._special(at))

    def _special(self, at: int) -> bool:
        return int(self.trajectory.tokens()[at]) in self.special


def token_view(body: Trajectory, vocabulary: Vocabulary, advantage: float | None) -> TokenView:
    """Return the trajectory with the text of its tokens."""
    texts = vocabulary.texts(body.tokens().tolist())
    return TokenView(body, texts, vocabulary.special, advantage)


def chance_text(chance: float) -> str:
    """Return the colour for a probability: stronger if lower, none from 0.99."""
    return _rgba(ORANGE, STRONGEST * (1 - chance)) if chance < 0.99 else ""


def advantage_text(advantage: float) -> str:
    """Return the colour of an advantage: blue if positive, orange if negative, strongest from 2."""
    strength = STRONGEST * min(abs(advantage) / 2, 1)
    return _rgba(BLUE if advantage > 0 else ORANGE, strength) if advantage else ""


def of_policy(index: int) -> str:
    """Return the colour for the position among the policies of the episode."""
    return _rgba(POLICIES[index % len(POLICIES)], 0.35)


def policy_name(version: int, track: str) -> str:
    """Return a policy's version and track; the track alone of an external model."""
    return f"v{version} {track}" if version >= 0 else track


def legend(mode: str, body: Trajectory) -> dict[str, str]:
    """Return labels and colours of a mode."""
    if mode == "probability":
        chances = (0.95, 0.5, 0.05)
        return {f"probability {chance}": chance_text(chance) for chance in chances}
    if mode == "advantage":
        return {"made more likely": advantage_text(1.0), "made less likely": advantage_text(-1.0)}
    return {
        policy_name(policy.version, policy.track): of_policy(place)
        for place, policy in enumerate(body.policies)
    }


def _rgba(colour: tuple[int, int, int], strength: float) -> str:
    red, green, blue = colour
    return f"rgba({red}, {green}, {blue}, {strength:.2f})"
