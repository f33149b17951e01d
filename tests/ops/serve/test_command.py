"""`agentrl serve` as a process, and OpenAI's own package as its client."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from running import ROOT, agentrl, eventually

from agentrl.core import config_loading
from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.registry import source
from agentrl.ops.runs.begin import begin

TOKEN = "a token of ours"
ITEMS = 8  # some of them the tiny policy solves
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 24}


@contextmanager
def served(*arguments: str, name: str, folder: Path, token: str = "") -> Iterator[openai.OpenAI]:
    """A client of `agentrl serve`, which SIGTERM then ends cleanly."""
    output, environment = folder / "log", {"SERVE_TOKEN": token} if token else {}
    asked = ("--token-env", "SERVE_TOKEN") if token else ()
    words = ("serve", *arguments, "--port", "0", *asked)
    with agentrl(*words, environment=environment, output=output) as process:
        eventually(
            lambda: process.poll() is not None or "is served on" in output.read_text(),
            within_s=200,
            text=output.read_text,
        )
        found = re.search(
            rf"{name} is served on (http://\S+/v1); call style plain", output.read_text()
        )
        assert found, output.read_text()
        with closing(openai.OpenAI(base_url=found[1], api_key=token or "x", max_retries=0)) as made:
            yield made
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, output.read_text()
        assert "Traceback" not in output.read_text()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of the policy models/tiny, behind a token."""
    folder = tmp_path_factory.mktemp("serve")
    with served("models/tiny", name="tiny", folder=folder, token=TOKEN) as made:
        yield made


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def test_a_model_is_listed_and_chats(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == ["tiny"]
    made = [
        client.chat.completions.create(messages=[user("hello")], logprobs=True, **GREEDY)
        for _ in range(2)
    ]
    first, second = (each.choices[0] for each in made)
    assert first.message.content == second.message.content
    assert first.logprobs is not None
    assert first.logprobs.content is not None
    assert "".join(each.token for each in first.logprobs.content) == first.message.content
    assert all(each.logprob <= 0 for each in first.logprobs.content)
    usage = made[0].usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_says_what_an_answer_says(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(messages=[user("hello")], **GREEDY)
    chunks = list(
        client.chat.completions.create(
            messages=[user("hello")],
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    choices = [each for chunk in chunks for each in chunk.choices]
    said = "".join(each.delta.content or "" for each in choices)
    assert said == plain.choices[0].message.content
    assert choices[-1].finish_reason == plain.choices[0].finish_reason == "length"
    assert chunks[-1].usage == plain.usage


def test_an_agent_with_tools_solves_items_of_dbbench(client: openai.OpenAI) -> None:
    tasks = source("dbbench", {"style": "compact", "test_items": ITEMS})
    solved = 0
    for item in list(tasks.items("test"))[:ITEMS]:
        with closing(tasks.make(item)) as environment:
            tools: Any = [tool.schema() for tool in environment.tools]
            messages = [_plain(each) for each in environment.start().messages]
            for _ in range(tasks.max_turns):
                answer = client.chat.completions.create(messages=messages, tools=tools, **GREEDY)
                message = answer.choices[0].message
                calls = [
                    ToolCall(each.function.name, json.loads(each.function.arguments))
                    for each in message.tool_calls or ()
                    if each.type == "function"
                ]
                outcome = environment.call(calls or message.content or "")
                if outcome.done:
                    solved += outcome.score == 1.0
                    break
                messages.append(message.model_dump(exclude_none=True))
                ids = [each.id for each in message.tool_calls or ()]
                messages += [_plain(each, ids.pop(0) if ids else "") for each in outcome.messages]
    assert solved >= 2


def _plain(message: Message, answers: str = "") -> Any:
    plain = {"role": message.role, "content": message.content}
    return plain | {"tool_call_id": answers} if message.role == "tool" else plain


def test_mistakes_are_the_errors_that_the_package_knows(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="only tiny") as lost:
        create(messages=[user("?")], **GREEDY | {"model": "huge"})
    assert lost.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        create(messages=[user("?")], top_p=0.5, **GREEDY)
    assert refused.value.param == "top_p"
    with pytest.raises(openai.BadRequestError, match="maximum context length") as long:
        create(messages=[user("far too long " * 2000)], **GREEDY)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError) as stranger:
        client.with_options(api_key="guess").models.list()
    assert TOKEN not in str(stranger.value)


@pytest.mark.slow
def test_more_threads_compute(tmp_path: Path) -> None:
    with served("models/tiny", "--threads", "3", name="tiny", folder=tmp_path) as client:
        [own] = [  # of this process
            each
            for each in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            if "--threads" in Path(f"/proc/{each}/cmdline").read_text()
        ]
        before = len(list(Path(f"/proc/{own}/task").iterdir()))
        client.chat.completions.create(messages=[user("a long prompt " * 150)], **GREEDY)
        eventually(
            lambda: (
                len(list(Path(f"/proc/{own}/task").iterdir())) >= before + 3
            ),  # and one that renders
            within_s=5,
            text=lambda: f"{before} threads before",
        )


@pytest.mark.slow
def test_ctrl_c_ends_the_command_while_a_checkpoint_is_fetched(tmp_path: Path) -> None:
    output = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as hub:  # that never answers
        hub.settimeout(100)
        environment = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}
        environment |= {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_ETAG_TIMEOUT": "300"}
        words = ("serve", "hub:me/model", "--port", "0")
        with (
            agentrl(*words, environment=environment, output=output) as process,
            closing(hub.accept()[0]),
        ):
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130, output.read_text()
    assert "Traceback" not in output.read_text()


@pytest.mark.slow
def test_a_checkpoint_of_a_run_is_served_by_its_name(tmp_path: Path) -> None:
    config = config_loading.loads(
        f'run.home = "{tmp_path / "run"}"\nmodel.path = "models/tiny"\ntasks.dbbench = {{}}\n'
    )
    begin(config)
    file = tmp_path / "run.toml"
    file.write_text(config_loading.to_toml(config))
    arguments = ("run@latest", "--config", str(file))
    with served(*arguments, name="run@0", folder=tmp_path) as client:
        assert [each.id for each in client.models.list()] == ["run@0"]
        asked = GREEDY | {"model": "run@0"}
        answer = client.chat.completions.create(messages=[user("hello")], **asked)
    assert answer.model == "run@0"
    assert answer.choices[0].message.content


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-folder"], "no-such-folder is not a directory"),
        (["quickstart@latest", "--config", "missing.toml"], "missing.toml"),
        (["cli"], "cli contains no model"),
        (["models/tiny", "--host", "0.0.0.0"], "set --token-env"),  # noqa: S104
        (["models/tiny", "--token-env", "NOT_SET"], "NOT_SET is not set"),
        (["models/tiny", "--port", "{taken}"], "cannot listen on 127.0.0.1:{taken}"),
        (["models/tiny", "--port", "{taken}"], "choose another --port; each server needs its own"),
        (["no-such-folder", "--port", "{taken}"], "choose another --port"),  # before it loads
    ],
)
@pytest.mark.slow
def test_a_mistake_at_the_start_is_one_line(arguments: list[str], says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        words = [each.format(taken=taken) for each in arguments]
        words += [] if "--port" in words else ["--port", "0"]
        command = [sys.executable, "-m", "agentrl.cli.main", "serve", *words]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
        )
    assert done.returncode == 2, done.stderr
    assert says.format(taken=taken) in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not done.stdout
