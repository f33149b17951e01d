"""One episode: statements until an answer is committed. Every call of a message runs, in order."""

from collections.abc import Sequence

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.contract import Message, Observation, Outcome, Tool, ToolCall, strings
from agentrl.envs.tasks.dbbench import scoring
from agentrl.envs.tasks.dbbench.problem import Database, OpenDatabase, Problem
from agentrl.envs.tasks.options import Style

EXECUTE = "execute_sql"
COMMIT = "commit_final_answer"
TASK_TAG = "dbbench"  # the whole system message of the compact style
NO_CALL = "No tool call found. Please call a tool instead."
UNKNOWN_TOOL = "Invalid function call. Please call a tool instead."
NO_RESPONSE = "No response from database."

SYSTEM = """\
I will ask you a question; help me operate an SQL database to answer it.
Explain the problem and your solution and write down your thoughts. Then, every round, either \
operate or answer with the two tools you are given.
To run SQL call `execute_sql` with one statement in one line. I execute one statement at a time \
and give you its raw output, which you have to deal with by yourself.
When you are done, call `commit_final_answer`. DO NOT call it unless you are sure: the answer must \
be exactly the same as the correct one.
If the question is about modifying the database, after the operation the answer can be anything.
Always use the tools to submit your answer; never write it in the content."""

TOOLS = (
    strings(EXECUTE, "Execute one SQL statement and return its raw output.", "query"),
    Tool(
        COMMIT,
        "Commit the final answer; call it only when you are sure.",
        {
            "type": "object",
            "properties": {"answers": {"type": "array", "items": {"type": "string"}}},
            "required": ["answers"],
            "additionalProperties": False,
        },
    ),
)


class DbbenchEnvironment:
    """An Environment over a Database that `open_database` makes when the episode starts."""

    tools = TOOLS

    def __init__(self, problem: Problem, style: Style, open_database: OpenDatabase) -> None:
        self._problem = problem
        self._style = style
        self._open = open_database
        self._database: Database | None = None

    def start(self) -> Observation:
        self._database = self._open(self._problem.tables)
        if self._style == "compact":
            return Observation.of(TASK_TAG, compact_prompt(self._problem))
        return Observation.of(SYSTEM, full_prompt(self._problem))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if isinstance(calls, str) or not calls:
            return Outcome((Message("user", NO_CALL),))
        replies: list[Message] = []
        for call in calls:
            answers = parse_commit(call)
            if answers is not None:
                return self._finish(answers)
            replies.append(Message("tool", self._reply(call), call.name))
        return Outcome(tuple(replies))

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _reply(self, call: ToolCall) -> str:
        if call.error:
            return f"Error: {call.error}"
        if call.name not in (EXECUTE, COMMIT):
            return UNKNOWN_TOOL
        query = call.arguments.get("query")
        if call.name == COMMIT or set(call.arguments) != {"query"} or not isinstance(query, str):
            needed = "answers: an array of strings" if call.name == COMMIT else "query: a string"
            return f"Error: {call.name} takes exactly {needed}."
        return self._opened().execute(query) or NO_RESPONSE

    def _finish(self, answers: Sequence[str]) -> Outcome:
        problem = self._problem
        if problem.modifies:
            won = self._opened().table_hash() == (problem.answer_md5 or self._gold_hash())
        else:
            won = scoring.answers_match(answers, problem.answers)
        return Outcome((), done=True, reward=float(won), score=float(won))

    def _gold_hash(self) -> str:
        fresh = self._open(self._problem.tables)
        try:
            reply = fresh.execute(self._problem.gold_sql)
            if reply.startswith("Error"):  # the table as it was would reward doing nothing
                raise EnvironmentFailure(f"dbbench: the item's own SQL: {reply}")
            return fresh.table_hash()
        finally:
            fresh.close()

    def _opened(self) -> Database:
        if self._database is None:
            raise EnvironmentFailure("dbbench: the episode was not started")
        return self._database


def parse_commit(call: ToolCall) -> list[str] | None:
    """Return the answers of a well-formed commit, or None for any other call."""
    if call.name != COMMIT or call.error or set(call.arguments) != {"answers"}:
        return None
    answers = call.arguments["answers"]
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        return None
    return answers


def full_prompt(problem: Problem) -> str:
    """Return the benchmark's user message."""
    lines = [f"Question: {problem.question}\n"]
    if problem.description:
        lines.insert(0, f"Additional table information about the question: {problem.description}\n")
    if problem.evidence:
        lines.insert(0, f"Evidence about the question: {problem.evidence}\n")
    return "".join(lines)


def compact_prompt(problem: Problem) -> str:
    """Return a line per table, `name: column column`, then the question.

    Names of more than a word are told apart by commas.
    """
    tables = [
        f"{table.name}: {(', ' if ' ' in ''.join(table.columns) else ' ').join(table.columns)}"
        for table in problem.tables
    ]
    return "\n".join([*tables, problem.short or problem.question])
