"""Inspect: how often the first tool call of a served checkpoint has the expert's SQL."""

from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState, generate, system_message, use_tools
from inspect_ai.tool import Tool, tool


@tool
def execute_sql() -> Tool:
    async def execute(query: str) -> str:
        """Execute one SQL statement and return its raw output.

        Args:
            query: The statement.
        """
        return query  # it is compared, and not executed

    return execute


@scorer(metrics=[accuracy(), stderr()])
def same_query() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        calls = state.output.message.tool_calls or []
        query = calls[0].arguments.get("query") if calls else None
        return Score(value=CORRECT if query == target.text else INCORRECT, answer=query)

    return score


@task
def first_calls() -> Task:
    return Task(
        dataset=json_dataset("first_calls.jsonl", FieldSpec(input="question", target="answer")),
        solver=[system_message("dbbench"), use_tools(execute_sql()), generate(tool_calls="none")],
        scorer=same_query(),
    )
