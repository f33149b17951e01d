"""Every decoder takes an input or refuses it by name: no crash, no hang, bounded memory.

One that hangs is ended by the test's own time-out, which shows what it was reading.
"""

import logging
import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import tomli_w
from mutated_inputs import as_json, mutants, trees
from trajectories import finished

from agentrl.broker import messages
from agentrl.broker.messages import CheckpointPublished, RunEpisode
from agentrl.checkpoints import manifest
from agentrl.core import config_loading
from agentrl.core.errors import (
    AgentRLError,
    CheckpointError,
    ConfigError,
    MessageError,
    PolicyError,
)
from agentrl.core.journal import SampledStep, UnjudgedEpisode, decode_record, encode_record
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs import registry
from agentrl.envs.contract import Item, Tool
from agentrl.envs.gateway import anthropic, chat, responses
from agentrl.envs.gateway.messages import RequestRefused
from agentrl.envs.server import wire as env_wire
from agentrl.serving import wire as policy_wire
from agentrl.serving.engine_api import ModelLimits, RequestError, check_request
from agentrl.serving.vllm import wire as vllm_wire
from agentrl.workers.conversation import message_translation, toolcalls
from agentrl.workers.policies import client

FEW, MANY = 400, 100_000
TURN = 8_000  # characters: a turn is bounded by its tokens
GROWTH = 400 * 2**20  # bytes that a process may take more, whatever it reads


@dataclass(frozen=True)
class Decoder:
    """`seeds` are taken as they are; `read` raises nothing but `refusals`."""

    read: Callable[[Any], object]
    refusals: tuple[type[Exception], ...]
    inputs: Callable[[int], Iterable[Any]]


def _plain(tree: Any) -> bytes:
    return b"\x00" + msgspec.msgpack.encode(tree)


def _raw(body: Any) -> bytes:
    if not isinstance(body, bytes):
        raise TypeError("no body")
    return body


def _messages(count: int) -> Iterable[bytes]:
    bodies = [
        finished(text="a" * 40),
        CheckpointPublished(run_id="run", version=1, checkpoint_id="pause"),
        RunEpisode(run_id="run", episode_id="e", fence=1),
        CheckpointPublished(run_id="run", version=3, checkpoint_id="c"),
    ]
    read = [msgspec.msgpack.decode(messages.encode(each)[1:]) for each in bodies]
    yield from (messages.encode(each, compress_above=0) for each in bodies)
    yield from mutants(read, _plain, count // 2)
    for wire in mutants(read, _plain, count // 4, seed=1):  # whole frames of whatever
        yield b"\x01" + messages.zstandard.compress(wire[1:], 1)
    packed = [messages.encode(each, compress_above=0) for each in bodies]
    yield from mutants(packed, _raw, count // 4, seed=2)


def _step() -> Any:
    body = finished().trajectory
    step = SampledStep(
        step=body.steps[0],
        policy=body.policies[0],
        context=body.token_ids[:20],
        token_ids=body.token_ids[20:32],
        logprobs=body.logprobs[20:32],
    )
    return msgspec.msgpack.decode(encode_record(step))


def _unjudged() -> Any:
    said = ({"role": "user", "content": "which mug?"},)
    episode = UnjudgedEpisode(trajectory=finished().trajectory, messages=said)
    return msgspec.msgpack.decode(encode_record(episode))


COMPLETION = {
    "model": "run-v000001",
    "prompt": [1, 2, 3],
    "return_token_ids": True,
    "max_tokens": 8,
    "temperature": 0.7,
    "logprobs": 1,
    "stop_token_ids": [0],
    "seed": 7,
    "user": "e-1",
}


def _completion(body: bytes) -> object:
    request = policy_wire.decode(body).request()
    check_request(request, ModelLimits(vocabulary=768, context=4096))
    return request


CALL = {"id": "c0", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
SAID = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ENV_BODIES: dict[str, tuple[type, list[Any]]] = {
    "start": (
        env_wire.StartSample,
        [
            {"index": -1, "session_id": 3, "custom_task": {"a": [1]}},
            {"index": "x", "session_id": 1},
        ],
    ),
    "interact": (env_wire.Interact, [{"session_id": 3, "messages": [SAID]}]),
    "cancel": (env_wire.Cancel, [{"session_id": 3}]),
    "answer": (
        env_wire.InteractAnswer,
        [
            {
                "session_id": 3,
                "env_out": {
                    "messages": [{"role": "tool", "content": [{"text": "x"}]}],
                    "tools": [{"type": "function", "function": {"name": "add"}}],
                    "status": "completed",
                    "finish": True,
                    "reward": 1,
                    "metric": {"score": 1},
                },
            }
        ],
    ),
}


def _env_body(kind: type, body: bytes) -> object:
    read = env_wire.decode(body, kind)
    if isinstance(read, env_wire.Interact):
        return [env_wire.turn(message) for message in read.messages]
    if isinstance(read, env_wire.InteractAnswer):
        out = read.env_out
        return [env_wire.message(each) for each in out.messages], env_wire.score(out)
    return env_wire.encode(msgspec.to_builtins(read))


CHAT = {
    "model": "agentrl",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        SAID,
        {"role": "tool", "content": "3", "tool_call_id": "c0"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.3,
    "n": 1,
}
RESPONSE = {
    "model": "agentrl",
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "c0", "name": "add", "arguments": '{"n":1}'},
        {"type": "function_call_output", "call_id": "c0", "output": "3"},
    ],
    "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}],
    "text": {"format": {"type": "text"}},
    "previous_response_id": "resp_1",
    "max_output_tokens": 9,
}
MESSAGES = {
    "model": "agentrl",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "be brief"}],
    "messages": [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c0", "name": "add", "input": {"n": 1}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c0", "content": "3"}],
        },
    ],
    "tools": [{"name": "add", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "stop_sequences": ["x"],
    "stream": True,
}
CONFIG = {
    "workers": 2,
    "run": {"name": "x", "seed": 1},
    "store": {"url": "embedded"},
    "tasks": {"dbbench": {"weight": 1.0, "horizons": [[0, 4]], "options": {"seed": 3}}},
    "dispatch": {"group_size": 4, "retire_at": 0.9, "window": [0.1, 0.9]},
    "trainer": {"preset": "paper", "lora": {"rank": 8}},
    "policy": [{"name": "p", "engine": "scripted", "tracks": ["current", "lagged(4)"]}],
}
MANIFEST = {
    "checkpoint_id": "run-v000001",
    "version": 1,
    "parent": "run-v000000",
    "files": {"model.safetensors": "0" * 64, "sub/tokenizer.json": "1" * 64},
    "probe": {"token_ids": [1, 2], "logprobs": [-0.5]},
}


def _manifest(folder: Path, body: bytes) -> None:
    manifest.parse(body)  # most inputs end here
    (folder / manifest.FILE).write_bytes(body)
    manifest.verify(folder)


ANSWER = {
    "id": "cmpl-1",
    "choices": [
        {
            "index": 0,
            "token_ids": [5, 6],
            "logprobs": {"token_logprobs": [-0.5, -0.25]},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens_details": {"cached_tokens": 2}},
}
REPLY = {"choices": [{"message": {"content": "so", "tool_calls": [CALL]}}]}
POLICY = LivePolicy("policy", "http://127.0.0.1:1", "current", "c1", 1)


def _reply(body: bytes) -> object:
    return [
        message_translation.call_text(message_translation.read_reply(POLICY, body), style)
        for style in ("plain", "glm")
    ]


TOOLS = [
    Tool(
        "add",
        "",
        {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "of": {"type": "array"}},
            "required": ["n"],
            "additionalProperties": False,
        },
    )
]
TEXTS = [
    'add{"n":1,"of":[1,2]}',
    '<think>so</think><tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>',
    "<tool_call>add\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "<tool_call>\n<function=add>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
    '[{"name": "add", "arguments": {"n": 1}}, {"name": "x", "arguments": {}}]',
]


def _calls(text: bytes) -> object:
    for style in toolcalls.STYLES:
        toolcalls.parse(text[:TURN].decode(errors="replace"), TOOLS, style)
    raise MessageError("nothing is refused: ill-formed calls come back as errors")


TASKS = ("alfworld", "bfcl", "dbbench", "kg", "os", "webshop")


def _items(task: str, count: int) -> Iterable[dict[str, Any]]:
    source = registry.source(task, {"items": 4, "test_items": 2})
    return trees([dict(item.content) for item in source.items("train")], count // len(TASKS))


def _item(task: str) -> Callable[[dict[str, Any]], object]:
    if task == "os":
        from agentrl.envs.tasks.oslinux.problem import read

        return lambda content: read(Item(task, "-1", content))
    source = registry.source(task, {"items": 4, "test_items": 2})
    return lambda content: source.make(Item(task, "-1", content)).close()


def decoders(folder: Path) -> dict[str, Callable[[], Decoder]]:
    """Made when asked for: some read a task's items."""

    def of_json(read: Callable[[bytes], object], refusal: type[Exception], *seeds: Any) -> Any:
        return lambda: Decoder(read, (refusal,), partial(mutants, list(seeds), as_json))

    found = {
        "messages": lambda: Decoder(messages.decode, (MessageError,), _messages),
        "journal records": lambda: Decoder(
            decode_record,
            (MessageError,),
            partial(mutants, [_step(), _unjudged()], msgspec.msgpack.encode),
        ),
        "completions": of_json(_completion, RequestError, COMPLETION),
        "a policy's answer": of_json(partial(client._completion, POLICY), PolicyError, ANSWER),
        "a model's reply": of_json(_reply, PolicyError, REPLY),
        "vLLM's answer": of_json(vllm_wire.completion, PolicyError, ANSWER),
        "chat": of_json(chat.read, RequestRefused, CHAT),
        "responses": of_json(responses.read, RequestRefused, RESPONSE),
        "anthropic": of_json(anthropic.read, RequestRefused, MESSAGES),
        "config": lambda: Decoder(
            lambda body: config_loading.loads(body.decode(errors="replace")),
            (ConfigError,),
            partial(mutants, [CONFIG], lambda tree: tomli_w.dumps(tree).encode()),
        ),
        "a run's config": of_json(
            lambda body: config_loading.from_json(body.decode(errors="replace"), "run x"),
            ConfigError,
            CONFIG,
        ),
        "manifests": of_json(partial(_manifest, folder), CheckpointError, MANIFEST),
        "tool calls": lambda: Decoder(_calls, (MessageError,), partial(mutants, TEXTS, str.encode)),
    }
    for name, (kind, seeds) in ENV_BODIES.items():
        found[f"env {name}"] = of_json(partial(_env_body, kind), env_wire.MalformedBody, *seeds)
    for task in TASKS:
        found[f"items of {task}"] = lambda task=task: Decoder(  # type: ignore[misc]
            _item(task), (AgentRLError,), partial(_items, task)
        )
    return found


NAMES = list(decoders(Path()))


@pytest.fixture(autouse=True)
def _silent() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(decoder: Decoder, count: int) -> tuple[int, int]:
    """How many inputs were taken and how many refused. Raises AssertionError that names one."""
    taken = refused = silent = 0
    before = _memory()
    for given in decoder.inputs(count):
        try:
            decoder.read(given)
            taken += 1
        except decoder.refusals as error:
            silent += not str(error).strip()
            refused += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} at {given!r:.2000}") from error
    assert silent == 0, "refused without a word"
    assert _memory() - before < GROWTH
    return taken, refused


def _found(name: str, count: int, folder: Path) -> None:
    taken, refused = fuzz(decoders(folder)[name](), count)
    assert refused > 0
    assert taken > 0 or name in ("manifests", "tool calls")


@pytest.mark.parametrize("name", NAMES)
def test_a_few_inputs_are_taken_or_refused(name: str, tmp_path: Path) -> None:
    _found(name, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_thousand_inputs_are_taken_or_refused(name: str, tmp_path: Path) -> None:
    _found(name, MANY, tmp_path)
