"""Samples the next turns of a conversation that a request contains.

messages, tools ─▶ chat template ─▶ tokens ─▶ Engine ─▶ text ─▶ calls in the call style ─▶ reply
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.core.errors import ConfigError
from agentrl.envs.contract import TokenLogprob, Tool, ToolCall
from agentrl.envs.gateway.dialogue import Dialogue
from agentrl.envs.gateway.messages import (
    DialogueReply,
    DialogueRequest,
    DialogueTurn,
    RequestRefused,
    TokenCounts,
    cut_at_stop,
    policy_turn,
)
from agentrl.envs.gateway.request_fields import convert_fields
from agentrl.serving.engine_api import Engine, Request, RequestError
from agentrl.workers.conversation.branches import Branches
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.tool_schema import check_call
from agentrl.workers.conversation.toolcalls import Style, parse
from agentrl.workers.policies.client import Completion
from agentrl.workers.turn import end_at_stop

TOO_LONG = "context_length_exceeded"  # the code that programs look for
OnlyZero = Annotated[float, Meta(ge=0.0, le=0.0)]
OnlyOne = Annotated[float, Meta(ge=1.0, le=1.0)]


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields that tune the sampling. Engines draw from the whole distribution, so of most only
    the value without effect is accepted.
    """

    temperature: float = 1.0
    seed: int | None = None
    top_p: OnlyOne = 1.0
    top_k: Literal[0, -1] = 0
    min_p: OnlyZero = 0.0
    frequency_penalty: OnlyZero = 0.0
    presence_penalty: OnlyZero = 0.0
    repetition_penalty: OnlyOne = 1.0
    logit_bias: Annotated[dict[str, Any], Meta(max_length=0)] = {}


class ChatPolicy:
    """A policy of an engine, with the chat template and call style that it was trained with."""

    def __init__(self, engine: Engine, policy: str, template: ChatTemplate, style: Style) -> None:
        self._engine = engine
        self._policy = policy
        self._template = template
        self._style = style
        self._numbers = itertools.count(1)

    async def reply(self, request: DialogueRequest) -> DialogueReply:
        """Sample the turns of a request. Raises RequestRefused, PolicyError."""
        _require_free_choice(request)
        prompt = await asyncio.to_thread(self._prompt, request)  # of megabytes it takes seconds
        turns = await asyncio.gather(
            *(self._turn(request, prompt, number) for number in range(request.count))
        )
        return DialogueReply(next(self._numbers), tuple(turns), request)

    def _prompt(self, request: DialogueRequest) -> list[int]:
        """Return the tokens of the conversation, with each turn of the past as it is sampled."""
        messages = Dialogue().place(request).messages
        template, style = self._template, self._style
        try:
            branches = Branches(Conversation, template, style, request.tools, messages)
        except ConfigError as error:
            raise RequestRefused("messages", str(error)) from error
        prompt = branches.current.prompt()
        context = self._engine.limits(self._policy).context
        if len(prompt) >= context:
            text = f"{len(prompt)} tokens; this model's maximum context length is {context} tokens"
            raise RequestRefused("messages", text, code=TOO_LONG)
        return prompt

    async def _turn(self, request: DialogueRequest, prompt: list[int], number: int) -> DialogueTurn:
        """Sample one turn. `number`: of the request's turns, from 0."""
        terms, tuning = request.terms, convert_fields(request.tuning, Tuning)
        room = self._engine.limits(self._policy).context - len(prompt)
        ask = Request(
            self._policy,
            prompt,
            max_tokens=min(room, terms.max_tokens or room),
            temperature=tuning.temperature,
            stop_ids=self._template.stop_ids,
            seed=None if tuning.seed is None else tuning.seed + number,
        )
        try:
            sampled = await asyncio.wrap_future(self._engine.submit(ask))
        except RequestError as error:
            raise RequestRefused(error.field, str(error).partition(": ")[2]) from error
        whole = Completion(sampled.token_ids, sampled.logprobs, sampled.finish_reason)
        return self._read(request, len(prompt), end_at_stop(whole, (), terms.stop, self._template))

    def _read(self, request: DialogueRequest, prompt: int, done: Completion) -> DialogueTurn:
        """Return a completion as a turn. `prompt`: the tokens before it."""
        tokens = done.token_ids
        ended = bool(tokens) and tokens[-1] in self._template.stop_ids
        said = tokens[:-1] if ended else tokens
        text, stopped_at = self._template.decode(said), ""
        calls = _calls(text, request.tools, self._style)
        if isinstance(calls, str):
            calls, stopped_at = cut_at_stop(text, request.terms.stop)
        elif request.single:
            calls = calls[:1]
        pieces = self._template.pieces(said) if request.terms.logprobs else ()
        return DialogueTurn(
            policy_turn(next(self._numbers), calls),
            TokenCounts(prompt, len(tokens), cut=done.finish_reason == "length"),
            stopped_at,
            tuple(map(TokenLogprob, pieces, done.logprobs)) if request.terms.logprobs else None,
        )


def _calls(text: str, tools: Sequence[Tool], style: Style) -> list[ToolCall] | str:
    """Return the calls of a turn, or its text if it has none.

    A call with arguments that break its schema is the program's to refuse. Where one cannot be read
    at all, the turn stays text, so that nothing is called that was not said.
    """
    calls = parse(text, tools, style) if tools else text
    known = {tool.name: tool for tool in tools}
    if isinstance(calls, str) or not all(_is_read(each, known) for each in calls):
        return text
    return calls


def _is_read(call: ToolCall, tools: Mapping[str, Tool]) -> bool:
    """Return whether a call is of a known tool and its arguments are what the turn says.

    The schema alone then explains its error.
    """
    return call.name in tools and check_call(ToolCall(call.name, call.arguments), tools) == call


def _require_free_choice(request: DialogueRequest) -> None:
    """Raise RequestRefused for a request that only constrained decoding could fulfil."""
    if request.must_call:
        raise RequestRefused("tool_choice", '"required" is not supported; use "auto"')
    if request.must_json:
        raise RequestRefused("response_format", '"json_object" is not supported; use "text"')
