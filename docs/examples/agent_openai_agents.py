"""The agent of agent_program.py, written with the package `openai-agents`. It knows no AgentRL."""

import json
import sqlite3
import sys

from agents import Agent, Runner, StopAtTools, function_tool, set_tracing_disabled

item = json.load(sys.stdin)
table, columns = item["table"], item["columns"]
database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
marks = ", ".join("?" * len(columns))
database.executemany(f"INSERT INTO {table} VALUES ({marks})", item["rows"])


@function_tool
def execute_sql(query: str) -> str:
    try:
        return str(database.execute(query).fetchall())
    except sqlite3.Error as error:
        return f"Error: {error}"


@function_tool
def commit_final_answer(answers: list[str]) -> str:
    return json.dumps(answers)


set_tracing_disabled(True)
agent = Agent(
    name="dbbench",
    instructions="dbbench",
    model="any",
    tools=[execute_sql, commit_final_answer],
    tool_use_behavior=StopAtTools(stop_at_tool_names=["commit_final_answer"]),
)
question = f"{table}: {' '.join(columns)}\n{item['question']}"
print(Runner.run_sync(agent, question).final_output)
