"""Writes episodes of random legal moves, from which a starting policy learns the form of calls.

Example: python docs/examples/worlds/random_moves.py docs/examples/worlds/worlds.toml moves.jsonl
"""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from agentrl.core import config_loading
from agentrl.envs.contract import Item, Message, TaskSource, Tool, ToolCall
from agentrl.envs.play import take_turns
from agentrl.ops.tasks.task_sources import task_sources

EPISODES = 150  # of each task
MOVES: dict[str, Callable[[Random], ToolCall]] = {
    "sums": lambda draw: ToolCall("answer", {"answer": str(draw.randrange(19))}),
    "blackjack": lambda draw: ToolCall("act", {"action": draw.choice(["stick", "hit"])}),
    "number": lambda draw: ToolCall("act", {"action": f"[{draw.randint(1, 9)}]"}),
    "notes": lambda draw: ToolCall(
        "write", {"name": draw.choice("ab"), "text": draw.choice(["red", "blue"])}
    ),
    "letters": lambda draw: ToolCall("act", {"letter": draw.choice("xyz")}),
}


def as_json(message: Message) -> dict[str, Any]:
    """Return a message as OpenAI writes it."""
    named = {"name": message.name} if message.name else {}
    return {"role": message.role, "content": message.content, **named}


def play(source: TaskSource, item: Item, move: Callable[[], ToolCall]) -> dict[str, Any]:
    """Play an episode and return it as a line of the file."""
    written: list[dict[str, Any]] = []

    def agent(messages: Sequence[Message]) -> list[ToolCall]:
        call = move()
        function = {"name": call.name, "arguments": call.arguments}
        written.extend(map(as_json, messages))
        written.append({"role": "assistant", "tool_calls": [{"function": function}]})
        return [call]

    with closing(source.make(item)) as environment:
        first = environment.start().messages
        tools: Sequence[Tool] = environment.tools
        for _turn in take_turns(environment, first, agent, source.max_turns):
            pass
    return {"messages": written, "tools": [tool.schema() for tool in tools]}


def main() -> None:
    """Play every task of the configuration, and write the file."""
    config, out, draw = config_loading.load(Path(sys.argv[1])), Path(sys.argv[2]), Random(0)
    sources = task_sources(config)
    with out.open("w", encoding="utf-8") as file:
        for name, source in sources.items():
            items = source.items("train")
            for number in range(EPISODES):
                move = partial(MOVES[name], draw)
                episode = play(source, items[number % len(items)], move)
                file.write(json.dumps(episode) + "\n")


if __name__ == "__main__":
    main()
