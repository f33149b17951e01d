"""Generated items: a world of files, a question about it or a change to it."""

from collections.abc import Mapping
from random import Random

import msgspec

from agentrl.envs.tasks.generated import Drawn
from agentrl.envs.tasks.options import Difficulty
from agentrl.envs.tasks.oslinux.problem import Match, Problem, Script, Step
from agentrl.envs.tasks.oslinux.templates import changes, questions
from agentrl.envs.tasks.oslinux.templates.drawn_problem import Template

_EASY: tuple[Template, ...] = (
    questions.count_files,
    questions.count_lines,
    questions.sum_column,
    questions.largest_file,
    changes.write_file,
    changes.remove_files,
)
_MEDIUM: tuple[Template, ...] = (
    questions.users_of_shell,
    questions.unique_values,
    questions.highest_score,
    questions.hidden_files,
    changes.fix_modes,
    changes.rename_files,
)
_HARD: tuple[Template, ...] = (
    questions.busiest_address,
    questions.total_size,
    questions.total_of_name,
    changes.stop_process,
    changes.move_large,
    changes.replace_word,
)
TEMPLATES: Mapping[Difficulty, tuple[Template, ...]] = {
    "easy": _EASY,
    "medium": _EASY + _MEDIUM,
    "hard": _MEDIUM + _HARD,
}
DONE = "done"  # what an expert says after a change


def draw(difficulty: Difficulty, random: Random, number: int) -> Drawn:
    """Return content and split key of item `number`; None if the question has several answers."""
    templates = TEMPLATES[difficulty]
    drawn = templates[number % len(templates)](random)
    if not drawn.files:
        return None
    question = bool(drawn.answer)
    problem = Problem(
        description=drawn.question,
        short=drawn.short,
        init=[Script(drawn.init())],
        match=Match(answer=drawn.answer) if question else None,
        check=[] if question else [Step(script=Script(drawn.check))],
        example=Script(drawn.command),
        commands=[drawn.command],
        answer="" if question else DONE,
    )
    key = "\n".join([drawn.question, drawn.answer or drawn.check])
    return msgspec.to_builtins(problem), key
