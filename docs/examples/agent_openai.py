"""Guess the capital, with the `openai` package: streamed, one tool. It knows no AgentRL."""

import json
import sys

from openai import OpenAI

item = json.load(sys.stdin)
client = OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY say where
look = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "What a page says.",
        "parameters": {
            "type": "object",
            "properties": {"page": {"type": "string"}},
            "required": ["page"],
        },
    },
}
messages = [{"role": "user", "content": f"What is the capital of {item['country']}?"}]
while True:
    answer = client.chat.completions.create(model="any", messages=messages, tools=[look])
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        page = json.loads(call.function.arguments)["page"]
        seen = item["pages"].get(page, "no such page")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
messages.append({"role": "user", "content": "In one word."})
stream = client.chat.completions.create(model="any", messages=messages, tools=[look], stream=True)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream))
