"""What a judge reads and calls: replies, prompts, functions."""

import re
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.core.config.sections.tasks import Judge, Task
from agentrl.core.errors import ConfigError, PolicyError
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.workers.judging.judge import (
    EpisodeToJudge,
    JudgeAway,
    JudgeSilent,
    UnreadableReply,
    number_turns,
)
from agentrl.workers.judging.scorers import (
    JudgePolicies,
    function_scorer,
    load_prompt,
    make_judges,
    model_scorer,
    read_score,
    read_turn_scores,
    render_prompt,
    require_pattern,
)
from agentrl.workers.policies.client import (
    CheckpointNotServed,
    PolicyClient,
    RequestRefused,
    Unanswered,
    Unreachable,
)

PATTERN = require_pattern("talk", Judge())
EPISODE = EpisodeToJudge(
    item={"goal": "a mug"},
    messages=[{"role": "user", "content": "find it"}, {"role": "assistant", "content": "here"}],
    status="completed",
    reward=1.0,
    score=0.0,
    turns=1,
)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 0.7", 0.7),
        ("**Score:** 1", 1.0),
        ("Score = **.5**", 0.5),
        ("score -0.5.", -0.5),
        ("Score: 0.2\nOn a second look:\nSCORE: 0.8\n", 0.8),
        ("The score is high.\nScore: 1.0", 1.0),
    ],
)
def test_a_score_is_read(reply: str, score: float) -> None:
    assert read_score(reply, PATTERN) == score


@pytest.mark.parametrize(
    "reply",
    ["", "Well done.", "Score: high", "Score: 7/10", "Score: 70 %", "Score: 1e-3", "Score: 0.5.1",
     "underscore: 1", "scores: 1", "Score: 0.85/1"],
)  # fmt: skip
def test_a_part_of_another_number_is_no_score(reply: str) -> None:
    with pytest.raises(UnreadableReply, match="no score in the reply"):
        read_score(reply, PATTERN)


@given(st.floats(0.0, 1.0), st.text().filter(lambda text: "score" not in text.lower()))
def test_what_a_judge_writes_on_its_line_is_read(score: float, reason: str) -> None:
    written = f"{score:.6f}"
    assert read_score(f"{reason}\nScore: {written}\n", PATTERN) == float(written)


@given(st.lists(st.sampled_from(["Score", "score", ":", " ", "\n", "1", "0", ".", "-", "/", "%",
                                 "e", "*", "x"])).map("".join))  # fmt: skip
def test_a_score_is_a_number_that_stands_alone_in_the_reply(reply: str) -> None:
    try:
        score = read_score(reply, PATTERN)
    except UnreadableReply:
        return
    alone = re.findall(r"(?<![\d.])-?[\d.]+(?![\d%/\w])", reply)
    assert score in {float(each.rstrip(".")) for each in alone if each.strip("-.").count(".") < 2}


PROSE = st.text(max_size=40).filter(lambda text: "score" not in text.lower())
LINES = st.lists(st.tuples(PROSE, st.floats(0.0, 1.0).map("{:.6f}".format)), max_size=8)


@given(LINES, PROSE, st.integers(0, 9))
@example([("", "0.000000")], "/", 1)
def test_scores_of_turns_are_read_in_order_or_not_at_all(
    lines: list[tuple[str, str]], end: str, turns: int
) -> None:
    written = [f"Turn {n}: {text} Score: {score}" for n, (text, score) in enumerate(lines, 1)]
    reply = "\n".join([*written, end])
    if turns != len(lines):
        with pytest.raises(UnreadableReply, match=f"{len(lines)} scores of {turns} turns"):
            read_turn_scores(reply, PATTERN, turns)
    assert read_turn_scores(reply, PATTERN, len(lines)) == tuple(float(each) for _, each in lines)


@given(
    st.lists(st.sampled_from(["Score:", " ", "\n", "1", "0", ".", "-", "/", "%", "x"])).map("".join)
)
def test_the_last_of_the_scores_of_turns_is_that_of_the_episode(reply: str) -> None:
    for turns in range(1, 4):
        try:
            scores = read_turn_scores(reply, PATTERN, turns)
        except UnreadableReply:
            continue
        assert (len(scores), scores[-1]) == (turns, read_score(reply, PATTERN))


@pytest.mark.parametrize("reply", ["Score: 1\nScore: 7/10", "Score: 1", "", "Score: 1 " * 3])
def test_a_turn_without_its_own_score_is_unreadable(reply: str) -> None:
    with pytest.raises(UnreadableReply, match="scores of 2 turns in the reply"):
        read_turn_scores(reply, PATTERN, 2)


def test_the_built_in_prompt_asks_for_a_line_of_each_numbered_turn() -> None:
    prompt, limits = load_prompt("talk", Judge(scores="turns")), {"low": 0.0, "high": 1.0}
    messages = number_turns([*EPISODE.messages, {"role": "assistant", "content": "there"}], 2)
    text = render_prompt(prompt, replace(EPISODE, messages=messages, turns=2, by_turn=True), limits)
    assert "===== assistant, turn 1\nhere\n===== assistant, turn 2\nthere\n===== end" in text
    assert text.endswith("Turn 1: SENTENCE Score: NUMBER")
    plain = render_prompt(prompt, EPISODE, limits)
    assert "===== assistant\nhere\n===== end" in plain
    assert plain.endswith("\n\nScore: NUMBER")


def test_a_match_that_is_no_number_is_unreadable() -> None:
    with pytest.raises(UnreadableReply, match="'high' is not a number"):
        read_score("grade high", re.compile(r"grade (\w+)"))
    with pytest.raises(UnreadableReply, match="'high' is not a number"):
        read_turn_scores("grade 1 grade high", re.compile(r"grade (\w+)"), 2)


@pytest.mark.parametrize(
    ("pattern", "why"), [("(", "missing"), ("x", "0 capturing groups"), ("(a)(b)", "2")]
)
def test_a_pattern_needs_one_group(pattern: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"tasks.talk.judge.pattern: .*{why}"):
        require_pattern("talk", Judge(pattern=pattern))


def test_a_prompt_of_ones_own_knows_item_and_episode(tmp_path: Path) -> None:
    path = tmp_path / "prompt.jinja"
    path.write_text(
        "{{ item.goal }}|{{ messages[-1].content }}|{{ reward }}|{{ turns }}|{{ high }}"
    )
    prompt = load_prompt("talk", Judge(prompt=str(path)))
    assert render_prompt(prompt, EPISODE, {"low": 0.0, "high": 5.0}) == "a mug|here|1.0|1|5.0"


def test_a_prompt_that_names_what_there_is_not_is_no_score(tmp_path: Path) -> None:
    path = tmp_path / "prompt.jinja"
    path.write_text("{{ item.answer }}")
    with pytest.raises(UnreadableReply, match="the prompt failed: UndefinedError"):
        render_prompt(load_prompt("talk", Judge(prompt=str(path))), EPISODE, {})


@pytest.mark.parametrize("text", [None, "{% if %}"])
def test_a_prompt_that_cannot_be_read_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "prompt.jinja"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"tasks.talk.judge.prompt: .*prompt.jinja"):
        load_prompt("talk", Judge(prompt=str(path)))


FUNCTIONS = """
def brief(item, episode):
    return episode.turns / 4 if item["goal"] == "a mug" else 0.0

def away(item, episode):
    raise ConnectionError("refused")

def late(item, episode):
    raise TimeoutError("no answer")

def broken(item, episode):
    raise KeyError("answer")

def words(item, episode):
    return "good"

def turns(item, episode):
    return [0.5] * 2
"""


@pytest.fixture
def functions(tmp_path: Path) -> str:
    path = tmp_path / "judges.py"
    path.write_text(FUNCTIONS)
    return str(path)


def test_a_function_gets_item_and_episode(functions: str) -> None:
    scorer = function_scorer("talk", Judge(function=f"{functions}:brief"))
    assert scorer.name == f"{functions}:brief"
    assert scorer.ask(EPISODE) == ((0.25,), "")


def test_a_function_gives_each_turn_its_score(functions: str) -> None:
    scorer = function_scorer("talk", Judge(function=f"{functions}:turns", scores="turns"))
    assert scorer.ask(replace(EPISODE, turns=2, by_turn=True)) == ((0.5, 0.5), "")


@pytest.mark.parametrize("name", ["brief", "words", "turns"])
def test_a_function_that_returns_no_list_of_all_turns_is_unreadable(
    functions: str, name: str
) -> None:
    scorer = function_scorer("talk", Judge(function=f"{functions}:{name}", scores="turns"))
    with pytest.raises(UnreadableReply, match="instead of a list of 3 numbers"):
        scorer.ask(replace(EPISODE, turns=3, by_turn=True))


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        ("away", JudgeAway, "ConnectionError: refused"),
        ("late", JudgeSilent, "TimeoutError: no answer"),
        ("broken", UnreadableReply, "KeyError: 'answer'"),
        ("words", UnreadableReply, "returned 'good'"),
    ],
)
def test_a_function_says_that_it_is_away_or_fails(
    functions: str, name: str, error: type[Exception], why: str
) -> None:
    scorer = function_scorer("talk", Judge(function=f"{functions}:{name}"))
    with pytest.raises(error, match=why):
        scorer.ask(EPISODE)


def test_a_function_that_is_not_there_is_refused(functions: str) -> None:
    with pytest.raises(ConfigError, match=r"tasks.talk.judge: option function: .*:nobody"):
        function_scorer("talk", Judge(function=f"{functions}:nobody"))


def test_a_policy_that_is_not_served_is_away() -> None:
    with closing(PolicyClient()) as client:
        policies = JudgePolicies({"critic": "big"}, lambda _: None, client, 60.0)
        scorer = model_scorer("talk", Judge(policy="critic"), policies)
        assert scorer.name == "big"
        with pytest.raises(JudgeAway, match="policy critic is not served"):
            scorer.ask(EPISODE)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unanswered, JudgeSilent),
        (Unreachable, JudgeAway),
        (CheckpointNotServed, JudgeAway),  # also of a policy whose budget is spent
        (RequestRefused, UnreadableReply),
        (PolicyError, UnreadableReply),
    ],
)
def test_a_policy_that_gives_no_answer_is_away_unless_only_this_request_gets_none(
    error: type[PolicyError], kind: type[Exception]
) -> None:
    class Client(PolicyClient):
        def post(self, *_: object) -> bytes:
            raise error("why")

    critic = LivePolicy("server", "http://localhost", "critic", "big", -1)
    policies = JudgePolicies({"critic": "big"}, lambda _: critic, Client(), 60.0)
    scorer = model_scorer("talk", Judge(policy="critic"), policies)
    assert scorer.probe is not None
    with pytest.raises(kind, match="why") as raised:
        scorer.ask(EPISODE)
    assert raised.type is kind
    if kind is UnreadableReply:
        scorer.probe()
        return
    with pytest.raises(kind, match="why"):
        scorer.probe()


def test_only_tasks_with_a_judge_have_one(functions: str) -> None:
    tasks = {"talk": Task(judge=Judge(function=f"{functions}:brief")), "walk": Task()}
    with closing(PolicyClient()) as client:
        policies = JudgePolicies({}, lambda _: None, client, 60.0)
        judges = make_judges(tasks, policies, threading.Event())
    assert list(judges) == ["talk"]
    assert judges["talk"].judge(EPISODE).score == 0.25
