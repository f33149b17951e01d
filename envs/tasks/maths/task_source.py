"""The task source: items, their environments, and the Python of an episode."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs.contract import Environment, Expert, Item, Recovery
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec
from agentrl.envs.tasks import generated, options
from agentrl.envs.tasks.maths import datasets, generate, reasoning
from agentrl.envs.tasks.maths.calculator import Calculator
from agentrl.envs.tasks.maths.container import ContainedPython, limits, program
from agentrl.envs.tasks.maths.environment import (
    ARITHMETIC_TOOL,
    PYTHON_TOOL,
    MathsEnvironment,
    OfferedTool,
)
from agentrl.envs.tasks.maths.expert import MathsExpert
from agentrl.envs.tasks.maths.problem import Interpreter, Problem

MAX_TURNS = 8


class Options(options.Generated, frozen=True, forbid_unknown_fields=True):
    """`origin`: of the items. `data`: the folder of datasets, empty for AGENTRL_DATA.

    `tool`: whether the agent has Python. `container`: it is Python in a sandbox; else it is the
    arithmetic that calculator.py knows. `max_calls`: calls of it in an episode, after which it is
    refused. `call_timeout_s`: seconds of wall clock, and `memory_mb`: MiB, of code in a sandbox.
    `tool_share`: share of expert episodes that use the tool.
    """

    origin: Literal["generated", "reasoning-gym", "gsm8k"] = "generated"
    data: str = ""
    tool: bool = True
    container: bool = False
    max_calls: Annotated[int, Meta(ge=1)] = 4
    call_timeout_s: Annotated[float, Meta(gt=0)] = 5.0
    memory_mb: Annotated[int, Meta(ge=64)] = 256
    tool_share: Annotated[float, Meta(ge=0, le=1)] = 1.0


class MathsSource(generated.SplitSource):
    """A TaskSource of generated items, reasoning-gym's, or those of a file."""

    name = datasets.TASK
    max_turns = MAX_TURNS

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._options = options.parse(self.name, Options, given)
        if self._options.origin == "gsm8k":
            load = partial(datasets.items, given=self._options.data)
            self._splits = generated.LoadedSplits(self.name, datasets.SPLITS, load)
        else:
            draw = generate.draw if self._options.origin == "generated" else reasoning.draw
            draw_item = partial(draw, self._options.difficulty)
            self._splits = generated.Splits(self.name, self._options, draw_item)
        self._sandboxes: Sandboxes | None = None

    @property
    def recovery(self) -> Recovery:
        """Code in a sandbox may read clocks, or draw at random."""
        return "restart_only" if self._is_contained else "replayable"

    def make(self, item: Item) -> Environment:
        """Raises ConfigError without the containers that the options ask for."""
        if self._is_contained and self._sandboxes is None:
            raise ConfigError(
                "maths: container = true needs an env server", hint="set envs.url to an env server"
            )
        tool = PYTHON_TOOL if self._is_contained else ARITHMETIC_TOOL
        offered = OfferedTool(tool, self._open_python, self._options.max_calls)
        shown = offered if self._options.tool else None
        return MathsEnvironment(_problem(item), self._options.style, shown)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        share = self._options.tool_share if self._options.tool else 0.0
        return MathsExpert(_problem(item), seed=seed, noise=noise, tool_share=share)

    def specs(self, image: str) -> Sequence[Spec]:
        bounds = limits(self._options.memory_mb)
        return [Spec(image, program(), bounds)] if self._is_contained else []

    def contain(self, pools: Mapping[str, Sandboxes]) -> None:
        self._sandboxes = pools[""]

    @property
    def _is_contained(self) -> bool:
        return self._options.tool and self._options.container

    def _open_python(self) -> Interpreter:
        if self._sandboxes is None:
            return Calculator()
        return ContainedPython(
            self._sandboxes,
            timeout_s=self._options.call_timeout_s,
            memory_mb=self._options.memory_mb,
        )


def _problem(item: Item) -> Problem:
    problem = options.read(item, Problem)
    if not problem.answer.strip():
        raise ItemError(f"item {item.item_id} has no answer")
    return problem
