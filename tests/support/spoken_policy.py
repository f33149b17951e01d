"""A policy that returns given texts, as tokens of a real tokenizer."""

from collections.abc import Sequence

from agentrl.envs.contract import Item, TaskSource, ToolCall
from agentrl.serving.engine_api import Request
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import render


class Speaker:
    """Says the next of its texts at each request, and then begins anew."""

    def __init__(self, template: ChatTemplate, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self._template = template
        self._said = 0

    def __call__(self, request: Request) -> Sequence[int]:  # noqa: ARG002 - of scripts
        text = self.texts[self._said % len(self.texts)]
        self._said += 1
        return [*self._template.encode(text), self._template.end_id]


def solution(source: TaskSource, item: Item) -> list[str]:
    """Return the turns of the task's expert, as text."""
    expert, environment = source.expert(item, seed=0), source.make(item)
    seen, turns = environment.start().messages, []
    while True:
        call = expert.act(seen)
        assert isinstance(call, ToolCall)
        turns.append(render(call, "plain"))
        outcome = environment.call([call])
        seen = outcome.messages
        if outcome.done:
            environment.close()
            return turns
