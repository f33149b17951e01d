"""One episode of a task folder: commands in one shell, then the task's own tests.

start ─▶ commands, in the image's variables and folder ─▶ finish, or the last turn
      ─▶ /tests/test.sh ─▶ /logs/verifier/reward.json or reward.txt ─▶ the reward
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Annotated

import msgspec
from msgspec import Meta

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.types import Status
from agentrl.envs.adapters.harbor.folder import TEST, TaskFolder
from agentrl.envs.adapters.steps import Answer, StepEnvironment
from agentrl.envs.contract import Observation, Outcome, ToolCall, shortened, strings
from agentrl.envs.sandbox.images import ImageSettings
from agentrl.envs.sandbox.program import OS
from agentrl.envs.tasks import options
from agentrl.envs.tasks.oslinux.environment import BASH, FINISH, NO_CALL
from agentrl.envs.tasks.oslinux.machine import Machine, ScriptResult
from agentrl.envs.tasks.oslinux.problem import Script
from agentrl.envs.tasks.oslinux.terminal import observation

TOOLS = (
    strings(BASH, "Run bash code in the system's shell and return its output.", "script"),
    strings(FINISH, "The task is done, or it cannot be; say what you thought.", "thought"),
)
ARGUMENTS = {BASH: "script", FINISH: "thought"}
SYSTEM = """\
You work in the shell of a Linux system. Carry out the task that you are given. Every turn, call \
one of the tools. Your bash code must not wait for input, and a command that takes too long is \
stopped. When the task is done, call `finish_action`; the result is then tested, and you get no \
further information."""
MIB = 1 << 20
LOGS = "/logs/verifier"
NO_REWARD = "wrote no reward"
PLAIN_S = 30.0  # for scripts of our own
READ = f"""cd {LOGS} && for name in json txt; do
  [ -e reward.$name ] && echo $name && exec cat reward.$name
done; tail -n 5 test-stdout.txt >&2; exit 1"""

Seconds = Annotated[float, Meta(gt=0.0)]


class HarborOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options. `splits`: patterns of the folders' names. `exclude`: patterns of folders that are
    left out. `build`: also the images of tasks that name one. `network`: whether a task may have
    one. `env`: variables that tasks name as `${NAME}`, with `${NAME}` from ours. `reward`: the key
    of reward.json. `memory_mb`, `cpus`, `storage_mb`, `verifier_timeout_s`: at most, of what a task
    asks for. `command_timeout_s`: of one command. `shown`: characters of its output.
    """

    splits: dict[str, list[str]] = msgspec.field(default_factory=lambda: {"train": ["*"]})
    exclude: list[str] = []
    prompt: str = SYSTEM
    build: bool = False
    network: bool = False
    env: dict[str, str] = {}
    reward: str = ""
    memory_mb: options.Count = OS.memory_bytes // MIB
    cpus: Annotated[float, Meta(gt=0.0)] = OS.cpus
    storage_mb: options.Count = OS.disk_bytes // MIB
    command_timeout_s: Seconds = 60.0
    verifier_timeout_s: Seconds = 120.0
    shown: options.Count = 8000
    max_turns: options.Count = 50


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says of a task. `network`: of the agent, of the tests.

    `env`, `tests_env`: variables of the task, and those of its tests alone.
    """

    options: HarborOptions
    network: tuple[bool, bool]
    env: Mapping[str, str]
    tests_env: Mapping[str, str]


class NoReward(Exception):
    """The tests left no reward that can be read."""


class HarborEnvironment(StepEnvironment):
    """An Environment. `lease` returns a machine that nobody used; `image`: what its image sets."""

    tools = TOOLS

    def __init__(
        self,
        task: TaskFolder,
        rules: Rules,
        lease: Callable[[], Machine],
        image: Callable[[], ImageSettings],
    ) -> None:
        super().__init__(rules.options.max_turns)
        self._task, self._rules, self._options = task, rules, rules.options
        self._lease, self._image = lease, image
        self._machine: Machine | None = None
        self._used_s = 0.0  # by the agent's commands

    def start(self) -> Observation:
        self._machine = self._prepared()
        self._machine.command(self._setting({}), PLAIN_S)
        return Observation.of(self._options.prompt, self._task.instruction)

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()

    def _answer_text(self, text: str) -> Answer:  # noqa: ARG002
        return NO_CALL, None

    def _answer_call(self, call: ToolCall) -> Answer:
        if call.name == FINISH and not call.error:
            return "", Status.COMPLETED
        answer = self._answer(call)
        return answer, Status.TASK_LIMIT if self._left_s() <= 0 else None

    def _answer(self, call: ToolCall) -> str:
        script = call.arguments.get("script")
        if call.error:
            return f"Error: {call.error}"
        if call.name not in ARGUMENTS:
            return f"There is no tool {shortened(call.name)}; call {BASH} or {FINISH}."
        if not isinstance(script, str) or len(call.arguments) != 1:
            return f"Error: {BASH} takes exactly script: a string."
        limit_s = min(self._options.command_timeout_s, self._left_s())
        began = time.monotonic()
        said = self._started().command(script, limit_s)
        self._used_s += time.monotonic() - began
        late_s = round(limit_s, 1) if said.late else None
        return observation(said.text, late_s=late_s, ended=said.ended, shorten=self._shorten)

    def _shorten(self, text: str) -> str:
        """Keep the beginning and the end, where errors are."""
        if len(text) <= self._options.shown:
            return text
        half = self._options.shown // 2
        return f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"

    def _left_s(self) -> float:
        """Return the seconds that the agent's commands may still take."""
        limit_s = self._task.settings.agent.timeout_sec
        return math.inf if limit_s is None else limit_s - self._used_s

    def _end(self, status: Status) -> Outcome:
        """Run the tests. Raises EnvironmentFailure where the tests themselves are at fault."""
        metrics = {"command_s": round(self._used_s, 3)}
        try:
            rewards = self._test(self._started())
        except TimeoutError:
            return Outcome((), done=True, status=status, metrics=metrics | {"tests_late": 1.0})
        except NoReward as error:
            self._require_sound_tests(error)
            return Outcome((), done=True, status=status, metrics=metrics | {"no_reward": 1.0})
        reward = self._reward(rewards)
        if len(rewards) > 1:
            metrics |= rewards
        return Outcome((), done=True, status=status, reward=reward, score=reward, metrics=metrics)

    def _reward(self, rewards: Mapping[str, float]) -> float:
        named = self._options.reward or ("reward" if len(rewards) > 1 else next(iter(rewards), ""))
        if named not in rewards:
            raise EnvironmentFailure(
                f"{self._where}: {TEST} wrote no reward {named!r}",
                hint=f"set the option reward to one of {', '.join(rewards)}",
            )
        return rewards[named]

    def _require_sound_tests(self, error: NoReward) -> None:
        """Raises EnvironmentFailure if a machine that nobody used gets no reward, either."""
        fresh = self._prepared()
        try:
            self._test(fresh)
        except (NoReward, TimeoutError):
            text = f"{self._where}: {TEST} {error}"
            raise EnvironmentFailure(text, hint=f"let it write {LOGS}/reward.txt") from error
        finally:
            fresh.close()

    def _prepared(self) -> Machine:
        """Lease a machine and make the folders that a task expects. Raises EnvironmentFailure."""
        try:
            machine = self._lease()
        except EnvironmentFailure as error:
            lacks = "python3" in str(error)
            hint = "add python3 (3.11 or newer) to its image" if lacks else error.hint
            raise EnvironmentFailure(f"{self._where}: {error}", hint=hint) from error
        try:
            script = f"mkdir -p {LOGS} /logs/agent /logs/artifacts && cd {quote(self._folder())}"
            made = machine.run(Script(script), (), PLAIN_S)
            if made.status != 0:
                raise EnvironmentFailure(f"{self._where}: {_last(made)}")
        except BaseException:
            machine.close()
            raise
        return machine

    def _test(self, machine: Machine) -> dict[str, float]:
        """Raises NoReward, TimeoutError at the task's own limit, EnvironmentFailure."""
        agents, own = self._rules.network
        if own != agents:
            machine.set_network(connected=own)
        emptied = machine.run(Script(f"rm -rf /tests {LOGS}; mkdir -p /tests {LOGS}"), (), PLAIN_S)
        if emptied.status != 0:
            raise NoReward(NO_REWARD)
        machine.put("/tests", self._task.archive("tests"))
        limit_s = min(self._task.settings.verifier.timeout_sec, self._options.verifier_timeout_s)
        script = (
            f"{self._setting(self._rules.tests_env)}\n/tests/test.sh > {LOGS}/test-stdout.txt 2>&1"
        )
        if machine.run(Script(script), (), limit_s).status is None:
            if limit_s < self._task.settings.verifier.timeout_sec:
                raise EnvironmentFailure(
                    f"{self._where}: {TEST} took over {limit_s:g} s",
                    hint="raise the option verifier_timeout_s, and envs.call_timeout_s with it",
                )
            raise TimeoutError
        return parse_rewards(machine.run(Script(READ), (), PLAIN_S))

    def _setting(self, more: Mapping[str, str]) -> str:
        """Return code that sets a shell up as the image and the task say."""
        variables = {**self._image().env, **self._rules.env, **more}
        lines = [f"export {name}={quote(value)}" for name, value in variables.items()]
        return "\n".join([*lines, f"cd {quote(self._folder())}"])

    def _folder(self) -> str:
        return self._task.settings.environment.workdir or self._image().folder or "/"

    def _started(self) -> Machine:
        if self._machine is None:
            raise EnvironmentFailure(f"{self._where}: the episode was not started")
        return self._machine

    @property
    def _where(self) -> str:
        return f"harbor task {self._task.path}"


def parse_rewards(read: ScriptResult) -> dict[str, float]:
    """Parse what READ printed, as Harbor does. Raises NoReward."""
    kind, _, text = read.text.partition("\n")
    if read.status != 0:
        raise NoReward(f"{NO_REWARD}: {_last(read)}")
    try:
        found = json.loads(text) if kind == "json" else {"reward": float(text)}
        numbers = {str(name): float(value) for name, value in found.items() if _is_number(value)}
    except (ValueError, AttributeError, OverflowError) as error:
        raise NoReward(f"{NO_REWARD}, but {shortened(text.strip(), 100)!r}") from error
    if len(numbers) != len(found) or not numbers:
        raise NoReward(f"{NO_REWARD}, but {shortened(text.strip(), 100)!r}")
    return numbers


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _last(ran: ScriptResult) -> str:
    return ran.error.strip().rpartition("\n")[2]
