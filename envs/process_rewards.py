"""Process rewards: rules that add to the reward of each turn, chosen by a task's configuration.

calls ─▶ environment ─▶ Outcome ─▶ + weight · rule(calls, Outcome) for each rule ─▶ Outcome
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.core.config.sections.tasks import ProcessRewards
from agentrl.envs.contract import PROGRESS, Environment, Observation, Outcome, Tool, ToolCall

Calls = Sequence[ToolCall] | str
Rule = Callable[[Calls, Outcome], float]


class ProcessRewardEnvironment:
    """An environment whose turns are also rewarded by weighted rules."""

    def __init__(self, inner: Environment, rules: Sequence[tuple[float, Rule]]) -> None:
        self._inner, self._rules = inner, rules

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._inner.tools

    def start(self) -> Observation:
        return self._inner.start()

    def call(self, calls: Calls) -> Outcome:
        outcome = self._inner.call(calls)
        added = sum(weight * rule(calls, outcome) for weight, rule in self._rules)
        return replace(outcome, reward=outcome.reward + added)

    def close(self) -> None:
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        """Return other attributes of the environment, such as `sampled`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def are_valid(calls: Calls, _outcome: Outcome) -> float:
    """Return 1 for a turn with calls, all of known tools and with arguments that fit.

    The call's `error` tells: by now the environment may have the tools of the next turn.
    """
    if isinstance(calls, str) or not calls:
        return 0.0
    return float(not any(call.error for call in calls))


class Progress:
    """The change of the metric `progress`; an environment without it makes none."""

    def __init__(self) -> None:
        self._reached = 0.0

    def __call__(self, _calls: Calls, outcome: Outcome) -> float:
        before, self._reached = self._reached, outcome.metrics.get(PROGRESS, self._reached)
        return self._reached - before


RULES: Mapping[str, Callable[[], Rule]] = {  # by key of ProcessRewards, for each episode
    "valid_call": lambda: are_valid,
    PROGRESS: Progress,
}


def with_process_rewards(environment: Environment, config: ProcessRewards) -> Environment:
    """Return the environment with the rules that have a weight; itself if none has."""
    weights = {name: getattr(config, name) for name in RULES}
    rules = [(weight, RULES[name]()) for name, weight in weights.items() if weight]
    return ProcessRewardEnvironment(environment, rules) if rules else environment
