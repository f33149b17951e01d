"""What judges: the model of an external policy, or a user's function."""

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentrl.core.config.sections.tasks import Judge as JudgeSection
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError, PolicyError
from agentrl.core.retry import Retry
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs.gateway.reward import Reward, call_reward, call_turn_rewards, load_function
from agentrl.workers.conversation.message_translation import read_reply
from agentrl.workers.judging.judge import (
    EpisodeToJudge,
    Judge,
    JudgeAway,
    JudgeSilent,
    Scorer,
    Scores,
    UnreadableReply,
)
from agentrl.workers.policies.client import (
    CheckpointNotServed,
    CompletionClient,
    RequestRefused,
    Unanswered,
)

RUBRIC = "rubric.jinja"  # beside this module
PROBE = "Reply with one word."
# "Score: 0.7", but no "7/10", "70%" or "1e-3", of which a part would be another score
SCORE = r"(?i)\bscore\b[\s:=*_]*(-?(?:\d+(?:\.\d+)?|\.\d+))(?!\.?\d|[ \t]*[/%]|\w)"


@dataclass(frozen=True, slots=True)
class JudgePolicies:
    """The policies that judge. `models`: by their names, the names of the models at the API.

    `find`: returns the live server of a policy, or None. `timeout_s`: of one request.
    """

    models: Mapping[str, str]
    find: Callable[[str], LivePolicy | None]
    client: CompletionClient
    timeout_s: float


def make_judges(
    tasks: Mapping[str, Task], policies: JudgePolicies, stop: threading.Event
) -> dict[str, Judge]:
    """Return the judges by task. `stop`: ends all waits.

    Raises ConfigError for a prompt, a pattern or a function that cannot be used.
    """
    return {
        task: Judge(
            task,
            section.judge,
            model_scorer(task, section.judge, policies)
            if section.judge.policy
            else function_scorer(task, section.judge),
            Retry(f"judge of {task}", JudgeAway, stop=stop),
        )
        for task, section in tasks.items()
        if section.judge.is_set
    }


def model_scorer(task: str, section: JudgeSection, policies: JudgePolicies) -> Scorer:
    """Return the model of a policy. Raises ConfigError for a wrong prompt or pattern."""
    prompt, pattern = load_prompt(task, section), require_pattern(task, section)
    limits = {"low": section.low, "high": section.high}

    def send(text: str) -> str:
        policy = policies.find(section.policy)
        if policy is None:
            raise JudgeAway(f"policy {section.policy} is not served; see `agentrl status CONFIG`")
        body = {
            "model": policy.checkpoint_id,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0.0,
        }
        try:
            data = policies.client.post(policy, "/v1/chat/completions", body, policies.timeout_s)
            return read_reply(policy, data).content or ""
        except RequestRefused as error:
            raise UnreadableReply(str(error)) from error
        except Unanswered as error:
            raise JudgeSilent(str(error)) from error
        except CheckpointNotServed as error:
            raise JudgeAway(str(error)) from error
        except PolicyError as error:
            raise UnreadableReply(str(error)) from error

    def ask(episode: EpisodeToJudge) -> tuple[Scores, str]:
        reply = send(render_prompt(prompt, episode, limits))
        if episode.by_turn:
            return read_turn_scores(reply, pattern, episode.turns), reply
        return (read_score(reply, pattern),), reply

    def probe() -> None:
        with suppress(UnreadableReply):  # a refusal is an answer
            send(PROBE)

    return Scorer(policies.models[section.policy], ask, probe)


def function_scorer(task: str, section: JudgeSection) -> Scorer:
    """Return the user's function. Raises ConfigError if it is not found."""
    function = load_judge_function(task, section)

    def ask(episode: EpisodeToJudge) -> tuple[Scores, str]:
        given = function, episode.item, episode, section.timeout_s
        try:
            if episode.by_turn:
                return call_turn_rewards(*given, episode.turns), ""
            return (call_reward(*given).reward,), ""
        except EnvironmentFailure as error:
            if isinstance(error.__cause__, TimeoutError):
                raise JudgeSilent(str(error)) from error
            if isinstance(error.__cause__, ConnectionError):
                raise JudgeAway(str(error)) from error
            raise UnreadableReply(str(error)) from error

    return Scorer(section.function, ask)


def read_score(reply: str, pattern: re.Pattern[str]) -> float:
    """Return the number of the pattern's last match. Raises UnreadableReply."""
    found = list(pattern.finditer(reply))
    if not found:
        raise UnreadableReply(f"no score in the reply that ends {reply[-200:]!r}")
    return _number(found[-1])


def read_turn_scores(reply: str, pattern: re.Pattern[str], turns: int) -> Scores:
    """Return the numbers of the pattern's matches, in order. Raises UnreadableReply unless there is
    one for each of the turns.
    """
    found = list(pattern.finditer(reply))
    if len(found) != turns:
        raise UnreadableReply(
            f"{len(found)} scores of {turns} turns in the reply that ends {reply[-200:]!r}"
        )
    return tuple(map(_number, found))


def _number(found: re.Match[str]) -> float:
    """Raises UnreadableReply."""
    text = found[1] or ""
    try:
        return float(text)
    except ValueError as error:
        raise UnreadableReply(f"the score {text!r:.40} is not a number") from error


def load_prompt(task: str, section: JudgeSection) -> Template:
    """Compile the prompt. Raises ConfigError."""
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    try:
        if section.prompt:
            source = Path(section.prompt).read_text("utf-8")
        else:
            source = resources.files(__package__).joinpath(RUBRIC).read_text("utf-8")
        return environment.from_string(source)
    except (OSError, UnicodeDecodeError, TemplateError) as error:
        where = section.prompt or RUBRIC
        raise ConfigError(f"tasks.{task}.judge.prompt: {where}: {error}") from error


def render_prompt(prompt: Template, episode: EpisodeToJudge, limits: Mapping[str, float]) -> str:
    """Render the prompt. Raises UnreadableReply: the model could not be asked."""
    fields = {name: getattr(episode, name) for name in EpisodeToJudge.__dataclass_fields__}
    try:
        return prompt.render(**fields, **limits)
    except Exception as error:  # whatever an expression of the user's template raises
        raise UnreadableReply(f"the prompt failed: {type(error).__name__}: {error}") from error


def require_pattern(task: str, section: JudgeSection) -> re.Pattern[str]:
    """Compile the pattern. Raises ConfigError unless it has one group."""
    key = f"tasks.{task}.judge.pattern"
    try:
        pattern = re.compile(section.pattern or SCORE)
    except re.error as error:
        raise ConfigError(f"{key}: {error}") from error
    if pattern.groups != 1:
        raise ConfigError(
            f"{key}: {pattern.groups} capturing groups instead of one",
            hint="put the number into ( ) and other groups into (?: )",
        )
    return pattern


def load_judge_function(task: str, section: JudgeSection) -> Reward:
    try:
        return load_function(section.function, f"tasks.{task}.judge", "function")
    except ItemError as error:
        raise ConfigError(str(error), hint=error.hint) from error
