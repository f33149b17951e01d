"""Weave's own code reads the spans of an episode, as our exporter sends them."""

import base64
import json
import shutil
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from spoken_policy import Speaker, solution
from takeovers import playing
from trace_collector import run_collector
from worker_runs import admit, scripted_worker

from agentrl import broker
from agentrl.core.config.sections.monitoring import Tracing
from agentrl.core.telemetry import otlp
from agentrl.core.telemetry.otlp import Patience
from agentrl.core.types import EpisodeState
from agentrl.db.store import open_store
from agentrl.envs import registry
from agentrl.workers.conversation.template import ChatTemplate

# `calls`: as the endpoint /otel/v1/traces maps spans; `root`, `chat`: /agents/otel/v1/traces.
JUDGE = """
import base64, json, sys
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from weave.trace_server.agents.chat_view import build_trace_chat
from weave.trace_server.agents.types import AgentSpanSchema
from weave.trace_server.opentelemetry.genai_extraction import extract_genai_span
from weave.trace_server.opentelemetry.python_spans import Resource, Span

spans = []
for body in json.load(sys.stdin):
    request = ExportTraceServiceRequest()
    request.ParseFromString(base64.b64decode(body))
    for group in request.resource_spans:
        resource = Resource.from_proto(group.resource)
        for scope in group.scope_spans:
            spans += [Span.from_proto(each, resource) for each in scope.spans]
calls = []
for span in spans:
    start, end = span.to_call("team/project")
    ended = end.model_dump(mode="json", exclude_none=True)
    calls.append(start.model_dump(mode="json") | ended)
rows = [extract_genai_span(span, "team/project").model_dump() for span in spans]
known = AgentSpanSchema.model_fields
rows = [{name: value for name, value in row.items() if name in known} for row in rows]
agents = [AgentSpanSchema(**row) for row in rows]
chat = build_trace_chat(agents, spans[0].trace_id).model_dump(mode="json")
(root,) = [each.model_dump(mode="json") for each in agents if not each.parent_span_id]
json.dump({"calls": calls, "chat": chat, "root": root}, sys.stdout)
"""


PATIENT = Patience(60.0, 60.0)
SOURCE = registry.source("dbbench", {"style": "compact", "difficulty": "easy"})
(ITEM, *_) = SOURCE.items("train")
TURNS = solution(SOURCE, ITEM)


@dataclass
class WeaveView:
    """What Weave makes of one episode: `calls` in its view Traces; `chat`, `root` in Agents."""

    episode_id: str
    checkpoint: str  # that acted
    calls: list[dict[str, Any]]
    chat: dict[str, Any]
    root: dict[str, Any]

    def find_calls(self, name: str) -> list[dict[str, Any]]:
        """Calls of one name in the order of their time."""
        found = (call for call in self.calls if call["op_name"] == name)
        return sorted(found, key=lambda call: str(call["started_at"]))


@pytest.fixture(scope="module")
def view(
    model_dir: Path,
    template: ChatTemplate,
    migrated_sqlite: Path,
    weave_python: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> WeaveView:
    folder = tmp_path_factory.mktemp("weave")
    shutil.copy(migrated_sqlite, folder / "store.db")
    with (
        closing(open_store(f"sqlite:///{folder / 'store.db'}")) as store,
        closing(broker.connect(f"sqlite:///{folder / 'queue.db'}")) as link,
        playing(store, Speaker(template, TURNS)) as world,
        run_collector() as collector,
    ):
        link.declare_run(world.run_id)
        with closing(scripted_worker(model_dir, world, link.publisher(), SOURCE, 60.0)) as worker:
            worker.start()
            command, _ = admit(world, [ITEM.item_id])
            config = Tracing(endpoint=collector.url, messages=True)
            with otlp.export_spans(config, "night", "worker", patience=PATIENT):
                worker.run(command)
        row = world.episode(command.episode_id)
        assert (row.state, row.score) == (EpisodeState.FINISHED, 1.0)
    judged = subprocess.run(
        [weave_python, "-c", JUDGE],
        input=json.dumps([base64.b64encode(body).decode() for body in collector.bodies]),
        capture_output=True,
        text=True,
        check=True,
    )
    return WeaveView(command.episode_id, f"{world.run_id}-v0", **json.loads(judged.stdout))


def said(call: dict[str, Any], way: str) -> Any:
    """The messages that went into a call (`input`), or came out of it (`output`)."""
    return call[{"input": "inputs"}.get(way, way)][f"gen_ai.{way}.messages"]


def test_an_episode_is_a_tree_of_calls_with_its_conversation(view: WeaveView) -> None:
    (root,) = [call for call in view.calls if call["parent_id"] is None]
    names = {call["id"]: call["op_name"] for call in view.calls}
    tree = [(call["op_name"], names.get(call["parent_id"])) for call in view.calls]
    turn = [("step", "episode"), ("policy", "step"), ("completion", "policy")]
    turn += [("environment", "step")]
    around = [(name, "episode") for name in ("queued", "start", "publish")]
    assert sorted(tree, key=str) == sorted([("episode", None), *around, *turn, *turn], key=str)
    assert len({call["trace_id"] for call in view.calls}) == 1
    assert (root["thread_id"], root["turn_id"]) == (view.episode_id, root["id"])
    assert root["attributes"]["agent_name"] == "night"
    own = root["otel_dump"]["attributes"]["agentrl"]
    assert (own["reward"], own["success"], own["task"]) == (1.0, True, "dbbench")
    assert own["item_id"] == ITEM.item_id

    first, second = SOURCE.make(ITEM).start().messages
    (asked,) = said(root, "input")
    assert asked == {"role": "user", "parts": [{"type": "text", "content": second.content}]}
    assert root["attributes"]["system"] == [{"type": "text", "content": first.content}]
    looks, answers = view.find_calls("policy")
    assert [message["role"] for message in said(looks, "input")] == ["system", "user"]
    (result,) = said(answers, "input")  # only what is new
    assert (result["role"], result["parts"][0]["type"]) == ("tool", "tool_call_response")
    assert said(root, "output") == said(answers, "output")
    for call, text in zip((looks, answers), TURNS, strict=True):
        (turned,) = said(call, "output")
        spoken, made = turned["parts"]
        assert (turned["role"], turned["finish_reason"]) == ("assistant", "stop")
        assert spoken == {"type": "text", "content": text}
        assert text == made["name"] + json.dumps(made["arguments"], separators=(",", ":"))
    assert said(looks, "output")[0]["parts"][1]["id"] == result["parts"][0]["id"]


def test_calls_of_the_policy_have_the_checkpoint_and_its_tokens(view: WeaveView) -> None:
    for call in view.find_calls("policy"):
        assert call["attributes"]["model"] == view.checkpoint
        usage = call["summary"]["usage"][view.checkpoint]
        assert 0 < usage["output_tokens"] < usage["input_tokens"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_the_view_of_agents_shows_the_conversation(view: WeaveView) -> None:
    root = view.root
    assert (root["agent_name"], root["operation_name"]) == ("night", "invoke_agent")
    assert root["conversation_id"] == view.episode_id
    assert root["custom_attrs_float"]["agentrl.reward"] == 1.0
    assert root["custom_attrs_bool"]["agentrl.success"] is True
    user, start, *turns = view.chat["messages"]
    system, asked = SOURCE.make(ITEM).start().messages
    assert user["user_message"]["text"] == asked.content
    assert start["agent_start"]["system_instructions"] == system.content
    texts = [each["assistant_message"]["text"] for each in turns[::2]]
    tools = [each["tool_call"] for each in turns[1::2]]
    assert texts == TURNS
    assert {each["assistant_message"]["model"] for each in turns[::2]} == {view.checkpoint}
    called = [each["tool_name"] + each["tool_arguments"].replace(": ", ":") for each in tools]
    assert called == TURNS
    assert tools[0]["tool_result"]
    tokens = [call["summary"]["usage"][view.checkpoint] for call in view.find_calls("policy")]
    assert view.chat["total_input_tokens"] == sum(each["input_tokens"] for each in tokens)
    assert view.chat["total_output_tokens"] == sum(each["output_tokens"] for each in tokens)
