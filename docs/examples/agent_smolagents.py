"""The agent of agent_program.py, written with the package `smolagents`. It knows no AgentRL."""

import json
import sqlite3
import sys

from smolagents import EMPTY_PROMPT_TEMPLATES, LogLevel, OpenAIModel, ToolCallingAgent, tool

item = json.load(sys.stdin)
table, columns = item["table"], item["columns"]
database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
marks = ", ".join("?" * len(columns))
database.executemany(f"INSERT INTO {table} VALUES ({marks})", item["rows"])


@tool
def execute_sql(query: str) -> str:
    """Execute one SQL statement.

    Args:
        query: the statement.
    """
    try:
        return str(database.execute(query).fetchall())
    except sqlite3.Error as error:
        return f"Error: {error}"


agent = ToolCallingAgent(
    tools=[execute_sql],
    model=OpenAIModel(model_id="any"),  # OPENAI_BASE_URL and OPENAI_API_KEY say where
    prompt_templates=EMPTY_PROMPT_TEMPLATES | {"system_prompt": "dbbench"},
    max_steps=4,
    verbosity_level=LogLevel.OFF,
)
answer = agent.run(f"{table}: {' '.join(columns)}\n{item['question']}")
print(json.dumps(str(answer).split(", ")))
