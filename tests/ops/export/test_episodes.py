"""Episodes that leave a run as a dataset and as chat JSONL."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from recorded_episodes import RecordedRun, store_episode
from run_transitions import World
from trajectories import trajectory
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.core.errors import StoreError
from agentrl.core.trajectory import Judgement, Trajectory
from agentrl.core.types import ABORT, UpdateState
from agentrl.db.models.updates import UpdateGroup
from agentrl.envs.contract import Message, strings
from agentrl.ops.export.episodes import ExportRequest, export_dataset, export_sft
from agentrl.ops.export.messages import read_messages
from agentrl.ops.warmstart.demonstrations import encode, import_transcripts
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.template import ChatTemplate

TINY = Path(__file__).parents[3] / "models" / "tiny"
BODY = trajectory()


@pytest.fixture
def played(recorded: RecordedRun) -> RecordedRun:
    """A run with an expert's and a faulty expert's episode of two tasks."""
    for task in ("alfworld", "dbbench"):
        for number, noise in enumerate((0.0, 0.6)):
            recorded.record(task, number, noise)
    return recorded


def test_a_dataset_holds_the_tokens_and_what_they_say(played: RecordedRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export_dataset(ExportRequest(played.path, out)) == f"4 episodes in {out}"
    rows = pq.read_table(out / "data").to_pylist()
    assert {row["episode_id"] for row in rows} == set(played.bodies)
    for row in rows:
        body = played.bodies[row["episode_id"]]
        assert row["token_ids"] == body.tokens().tolist()
        assert row["loss_mask"] == body.mask().tolist()
        assert row["logprobs"] == body.behaviour().tolist()
        assert row["policies"] == msgspec.to_builtins(list(body.policies))
        assert (row["reward"], row["score"], row["status"]) == (
            body.reward,
            body.score,
            body.status,
        )
        assert [step["end"] for step in row["steps"]] == [step.end for step in body.steps]
        assert [step["reward"] for step in row["steps"]] == body.step_rewards()
        roles = [message["role"] for message in row["messages"]]
        assert roles.count("assistant") == body.turns
        answers = [step.answer for step in body.steps if step.answer]
        found = [each["content"] for each in row["messages"] if each["role"] == "tool"]
        assert [text[:2000] for text in found] == answers
    card = (out / "README.md").read_text()
    assert card.startswith("---\npretty_name: Episodes of recorded\n")
    assert "path: data/train-*.parquet" in card
    assert "| alfworld | 2 | " in card


@pytest.mark.parametrize(
    ("state", "told"), [(UpdateState.COMMITTED, (1, 0.5)), (UpdateState.ROLLED_BACK, (None, None))]
)
def test_a_dataset_names_only_an_update_that_was_not_rolled_back(
    recorded: RecordedRun, tmp_path: Path, state: UpdateState, told: tuple[object, object]
) -> None:
    body = recorded.record("dbbench")
    world = World(recorded.store, body.run_id, "worker")
    first = f"{body.run_id}-v000000"
    world.add_update(1, update_id="u", checkpoint_id=first, state=state)
    with recorded.store.write() as session:
        one = {"episode_id": body.episode_id, "group_id": body.group_id, "fence": body.fence}
        session.add(UpdateGroup(update_id="u", sha256="", loss_tokens=1, advantage=0.5, **one))
    export_dataset(ExportRequest(recorded.path, tmp_path / "out"))
    (row,) = pq.read_table(tmp_path / "out" / "data").to_pylist()
    assert (row["trained_version"], row["advantage"]) == told


def test_a_dataset_holds_what_the_judge_scored_each_turn(
    recorded: RecordedRun, tmp_path: Path
) -> None:
    body = recorded.record("dbbench")
    scores = tuple(number / 8 for number in range(body.turns))
    judgement = Judgement(
        judge="big", score=0.5, reply="", environment_reward=body.reward, turn_scores=scores
    )
    recorded.keep(msgspec.structs.replace(body, judgement=judgement), "judged")
    export_dataset(ExportRequest(recorded.path, tmp_path / "out"))
    rows = pq.read_table(tmp_path / "out" / "data").to_pylist()
    found = {r["episode_id"]: [step["judge_score"] for step in r["steps"]] for r in rows}
    given = iter(scores)
    of_steps = [None if step.finish_reason == ABORT else next(given) for step in body.steps]
    assert found == {body.episode_id: [None] * len(body.steps), "judged": of_steps}


def test_fine_tuning_on_the_lines_sees_the_recorded_tokens(
    played: RecordedRun, tmp_path: Path
) -> None:
    """What `warmstart --imported` reads of them."""
    out = tmp_path / "out.jsonl"
    assert export_sft(ExportRequest(played.path, out)).endswith(f" in {out}")
    template = ChatTemplate.load(TINY)
    style = played.config.model.call_style
    transcripts = import_transcripts(out, style)
    names = [json.loads(line)["episode_id"] for line in out.read_text("utf-8").splitlines()]
    assert sorted(names) == sorted(played.bodies)
    for name, transcript in zip(names, transcripts, strict=True):
        body, (demonstration,) = played.bodies[name], encode(transcript, template, style)
        assert np.array_equal(demonstration.token_ids, body.tokens())
        assert np.array_equal(demonstration.mask, body.mask())


def test_episodes_are_chosen_by_task_and_reward(played: RecordedRun, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    argv = ["export", str(played.path), str(out), "--sft", "--task", "dbbench"]
    ended = CliRunner().invoke(app, [*argv, "--min-reward", "1"], catch_exceptions=False)
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    wanted = {
        name for name, body in played.bodies.items() if body.task == "dbbench" and body.reward >= 1
    }
    assert {line["episode_id"] for line in lines} == wanted != set()
    assert ended.output.startswith(f"{len(wanted)} episodes in {out}")
    with pytest.raises(StoreError, match="no finished episode of task kg"):
        export_sft(ExportRequest(played.path, tmp_path / "kg.jsonl", task="kg"))
    with pytest.raises(StoreError, match="exists already"):
        export_sft(ExportRequest(played.path, out))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out.jsonl", "run.toml"]


def test_a_body_that_is_not_stored_is_counted(played: RecordedRun, tmp_path: Path) -> None:
    body = next(iter(played.bodies.values()))
    pruned = msgspec.structs.replace(body, episode_id="pruned", group_id="pruned-g")
    store_episode(played.store, pruned, b"")
    told = export_dataset(ExportRequest(played.path, tmp_path / "out"))
    assert told.startswith("4 episodes (1 more are not stored) in ")


def test_tokens_that_are_no_rendered_messages_give_none(played: RecordedRun) -> None:
    template = ChatTemplate.load(TINY)
    body = next(iter(played.bodies.values()))
    tokens = body.tokens().copy()
    tokens[1] = template.end_id
    changed = msgspec.structs.replace(body, token_ids=tokens.tobytes())
    assert read_messages(body, template) is not None
    assert read_messages(changed, template) is None


@pytest.mark.parametrize(
    "pieces",
    [
        ["H", "e", "l", "l", "o"],  # the tokenizer splits it otherwise
        ["Hello", "<|user|>"],
        ["Hello", ""],
    ],
)
def test_an_episode_with_a_turn_that_its_text_does_not_give_is_left_out(
    recorded: RecordedRun, tmp_path: Path, pieces: list[str]
) -> None:
    template = ChatTemplate.load(TINY)
    half = template.encode("é")[:1]
    said = [token for each in pieces for token in template.encode(each) or half]
    recorded.record("dbbench")
    recorded.keep(converse(template, [said], recorded.run_id), "unread")
    out = tmp_path / "out.jsonl"
    why = "no messages give exactly their tokens"
    assert export_sft(ExportRequest(recorded.path, out)) == (
        f"1 episodes in {out}; 1 left out: {why}"
    )
    out = tmp_path / "out"
    assert export_dataset(ExportRequest(recorded.path, out)) == (
        f"2 episodes in {out}; 1 of them without messages: {why}"
    )


def test_another_stop_token_is_exact_at_the_end_of_an_episode_only() -> None:
    template = ChatTemplate.load(TINY)
    [other] = template.encode("<|pad|>")
    template.stop_ids |= {other}
    said = [*template.encode("Hello"), template.end_id]
    stopped = [*template.encode("Hello"), other]
    found = read_messages(converse(template, [said, stopped]), template)
    assert found is not None
    assert [each.content for each in found if each.role == "assistant"] == ["Hello", "Hello"]
    assert read_messages(converse(template, [stopped, said]), template) is None


def converse(
    template: ChatTemplate, turns: Sequence[Sequence[int]], run_id: str = "run"
) -> Trajectory:
    """Return an episode with these sampled turns."""
    conversation = Conversation(template, [], [Message("user", "Where is the mug?")])
    steps = []
    for said in turns:
        if steps:
            conversation.observe([Message("user", "Go on.")])
        start, end = conversation.append_sampled(said, [-1.0] * len(said), 0)
        step = {"start": start, "end": end, "policy_index": 0}
        steps.append(msgspec.structs.replace(BODY.steps[0], **step))
    arrays = dataclasses.asdict(conversation.arrays())
    return msgspec.structs.replace(BODY, run_id=run_id, steps=tuple(steps), **arrays)


CHATML = """\
{%- if tools or messages[0].role == 'system' %}
    {{- '<|system|>' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{% endif %}
    {%- for tool in tools or [] %}{{- '\\n' + (tool | tojson) }}{% endfor %}
    {{- '<|end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|user|>' }}{% endif %}
        {{- '\\n<tool_response>' + message.content + '</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|end|>\\n' }}{% endif %}
    {%- elif message.role != 'system' %}
        {{- '<|' + message.role + '|>' + message.content + '<|end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}
"""


def test_several_answers_and_a_prompt_with_tools_are_read_back(tmp_path: Path) -> None:
    """A first policy aborts within a turn, and one turn is closed by the template alone."""
    path = tmp_path / "chatml.jinja"
    path.write_text(CHATML)
    template = ChatTemplate.load(TINY, str(path))
    tool = strings("look", "Look at a thing.", "thing")
    first = [Message("system", "You act."), Message("user", "Where is the mug?")]
    answers = [
        [Message("tool", "A desk.\nA bed.", "look"), Message("tool", "A mug.", "look")],
        [Message("user", "Go on.")],
        [],
    ]
    calls = ['[{"name":"look"},{"name":"look"}]', "I am done.", '[{"name":"look"}]']
    conversation = Conversation(template, [tool], first)
    steps = []
    for turn, (answer, call) in enumerate(zip(answers, calls, strict=True)):
        said = template.encode(f"turn {turn}") + [template.end_id] * (turn != 1)
        for part, reason in ((said[:2], "abort"), (said[2:], "stop")):
            start, end = conversation.append_sampled(part, [-1.0] * len(part), 0)
            step = {"start": start, "end": end, "finish_reason": reason, "call": call}
            steps.append(msgspec.structs.replace(BODY.steps[0], policy_index=0, **step))
        conversation.observe(answer)
    arrays = dataclasses.asdict(conversation.arrays())
    body = msgspec.structs.replace(BODY, steps=tuple(steps), **arrays)
    found = read_messages(body, template)
    assert found is not None
    assert found[0].content.startswith('You act.\n{"type": "function"')
    said = [Message("assistant", f"turn {turn}") for turn in range(3)]
    assert found[1:] == [first[1], said[0], *answers[0], said[1], *answers[1], said[2]]
