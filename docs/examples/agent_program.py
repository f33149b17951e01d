"""An agent of its own: it answers a question by SQL, over the OpenAI chat API."""

import json
import os
import sqlite3
import sys
import urllib.request

item = json.load(sys.stdin)
table, columns, marks = item["table"], item["columns"], ["?"] * len(item["columns"])
database = sqlite3.connect(":memory:")
database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
database.executemany(f"INSERT INTO {table} VALUES ({', '.join(marks)})", item["rows"])


def tool(name, parameter, schema):
    parameters = {"type": "object", "properties": {parameter: schema}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT = {"type": "string"}
TOOLS = [
    tool("execute_sql", "query", TEXT),
    tool("commit_final_answer", "answers", {"type": "array", "items": TEXT}),
]


def chat(messages):
    body = {"model": "any", "messages": messages, "tools": TOOLS}
    key = "Bearer " + os.environ["OPENAI_API_KEY"]
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": key})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


def run(query):
    try:
        return str(database.execute(query).fetchall())
    except sqlite3.Error as error:
        return f"Error: {error}"


messages = [
    {"role": "system", "content": "dbbench"},
    {"role": "user", "content": f"{table}: {' '.join(columns)}\n{item['question']}"},
]
while True:
    answer = chat(messages)
    messages.append(answer)
    if not answer.get("tool_calls"):
        messages.append({"role": "user", "content": "Please call a tool."})
    for call in answer.get("tool_calls") or ():
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "commit_final_answer":
            print(json.dumps(arguments["answers"]))
            sys.exit()
        seen = run(arguments["query"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": seen})
