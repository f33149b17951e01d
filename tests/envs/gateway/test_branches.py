"""Programs that retry, ask beside themselves and rewrite history: where their requests belong."""

import json
from pathlib import Path

import pytest
from agent_programs import LOOK, Play, reward_of
from running import eventually

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Message, TurnTerms

ASKED, BLUE = Message("user", "?"), Message("assistant", "blue", turn=1)


def until(path: Path) -> str:
    """Lines of a program that waits until the test makes a file."""
    return f"while not os.path.exists({str(path)!r}): time.sleep(0.01)\n"


@pytest.mark.parametrize(
    ("second", "follows", "messages"),
    [
        ("[user('?'), answer, user('more')]", None, (Message("user", "more"),)),
        (
            "[user('other'), answer, user('more')]",
            0,
            (Message("user", "other"), BLUE, Message("user", "more")),
        ),
        (
            "[user('?'), {**answer, 'content': 'red'}, user('more')]",
            0,
            (ASKED, Message("assistant", "red"), Message("user", "more")),
        ),
        ("[user('so far: blue')]", 0, (Message("user", "so far: blue"),)),
        ("[user('?')]", 0, (ASKED,)),
        (
            "[user('?'), answer, {'role': 'assistant', 'content': 'no'}, user('more')]",
            0,
            (ASKED, Message("assistant", "blue\nno"), Message("user", "more")),
        ),
    ],
)
def test_a_request_continues_the_reply_that_it_repeats_or_begins_a_conversation(
    play: Play, second: str, follows: int | None, messages: tuple[Message, ...]
) -> None:
    environment = play(f"answer = said(ask([user('?')]))\nprint(said(ask({second}))['content'])")
    environment.start()
    outcome = environment.call("blue")
    assert (outcome.follows, outcome.messages) == (follows, messages)
    assert environment.call("blue").reward == 1.0


def test_a_second_request_after_the_same_reply_is_a_branch_of_it(play: Play) -> None:
    environment = play(
        "answer = said(ask([user('?')]))\n"
        "said(ask([user('?'), answer, user('one')]))\n"
        "print(said(ask([user('?'), answer, user('two')]))['content'])"
    )
    environment.start()
    assert environment.call("blue").follows is None
    outcome = environment.call("red")
    assert (outcome.follows, outcome.messages) == (1, (Message("user", "two"),))
    assert environment.call("blue").reward == 1.0


def test_history_whose_results_were_cut_keeps_the_turns_between_them(play: Play) -> None:
    environment = play(
        "look = tool('look', 'thing')\n"
        "messages = [user('?')]\n"
        "for seen in ('a long result', 'blue'):\n"
        "    messages.append(said(ask(messages, tools=[look])))\n"
        "    (call,) = messages[-1]['tool_calls']\n"
        "    messages.append({'role': 'tool', 'tool_call_id': call['id'], 'content': seen})\n"
        "messages[2]['content'] = 'cut'\n"
        "print(said(ask(messages, tools=[look]))['content'])"
    )
    environment.start()
    environment.call([LOOK])
    outcome = environment.call([LOOK])
    assert outcome.follows == 1
    seen = [(each.role, each.content, each.turn) for each in outcome.messages]
    assert seen == [("tool", "cut", 0), ("assistant", "", 2), ("tool", "blue", 0)]
    assert outcome.messages[1].calls == (LOOK,)
    assert environment.call("blue").reward == 1.0


def test_ids_of_calls_may_change(play: Play) -> None:
    environment = play(
        "look = tool('look', 'thing')\n"
        "message = said(ask([user('?')], tools=[look]))\n"
        "message['tool_calls'][0]['id'] = 'mine'\n"
        "seen = {'role': 'tool', 'tool_call_id': 'mine', 'content': 'blue'}\n"
        "print(said(ask([user('?'), message, seen], tools=[look]))['content'])"
    )
    environment.start()
    assert environment.call([LOOK]).follows is None
    assert environment.call("blue").reward == 1.0


def test_other_tools_begin_a_conversation(play: Play) -> None:
    environment = play(
        "answer = said(ask([user('?')]))\n"
        "asked = [user('?'), answer, user('more')]\n"
        "print(said(ask(asked, tools=[tool('a')]))['content'])"
    )
    environment.start()
    outcome = environment.call("blue")
    assert (outcome.follows, outcome.messages) == (0, (ASKED, BLUE, Message("user", "more")))
    assert [tool.name for tool in environment.tools] == ["a"]
    assert environment.call("blue").reward == 1.0


def test_several_turns_of_one_reply_are_sampled_one_by_one(play: Play) -> None:
    environment = play(
        "status, text = ask([user('?')], n=2)\n"
        "choices = json.loads(text)['choices']\n"
        "assert [each['index'] for each in choices] == [0, 1]\n"
        "second = [user('?'), choices[0]['message'], user('more')]\n"
        "said(ask(second))\n"
        "print(choices[1]['message']['content'])"
    )
    environment.start()
    sibling = environment.call("red")
    assert (sibling.follows, sibling.messages) == (0, (ASKED,))
    after = environment.call("blue")
    assert (after.follows, after.messages) == (1, (Message("user", "more"),))
    assert environment.call("so").reward == 1.0


def test_requests_at_once_are_answered_one_after_the_other(play: Play) -> None:
    environment = play(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(3) as pool:\n"
        "    answers = list(pool.map(lambda n: said(ask([user(f'{n}')])), range(3)))\n"
        "print(''.join(each['content'] for each in answers))"
    )
    asked, told = environment.start(), []
    for number in range(3):
        told.append(asked.messages[0].content)
        asked = environment.call({"0": "b", "1": "lu", "2": "e"}[told[-1]])  # type: ignore[assignment]
        assert number == 2 or asked.follows == 0  # type: ignore[attr-defined]
    assert sorted(told) == ["0", "1", "2"]
    assert asked.reward == 1.0  # type: ignore[attr-defined]


LEAVES = (
    "import http.client, urllib.parse\n"
    "url = urllib.parse.urlsplit(os.environ['OPENAI_BASE_URL'])\n"
    "link = http.client.HTTPConnection(url.netloc)\n"
    "link.request('POST', url.path + '/chat/completions',\n"
    "    json.dumps({'model': 'm', 'messages': [user('?')]}).encode(),\n"
    "    {'authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']})\n"
)


def test_a_request_repeated_by_a_client_that_gave_up_gets_the_one_answer(
    play: Play, tmp_path: Path
) -> None:
    """As the retries of HTTP clients do; the policy is asked once."""
    asked, gone = tmp_path / "asked", tmp_path / "gone"
    environment = play(
        LEAVES
        + until(asked)
        + "link.close()\n"
        + until(gone)
        + "print(said(ask([user('?')]))['content'])"
    )
    environment.start()
    asked.touch()
    waits = environment._pending  # type: ignore[attr-defined]
    eventually(lambda: not waits.waiting, within_s=60, text=lambda: "the request still waits")
    gone.touch()
    assert environment.call("blue").reward == 1.0


def test_a_retry_that_the_client_marks_gets_the_one_answer(play: Play) -> None:
    environment = play(
        "first = ask([user('?')], {'x-stainless-retry-count': '0'})\n"
        "assert ask([user('?')], {'x-stainless-retry-count': '1'}) == first\n"
        "print(said(first)['content'])"
    )
    assert reward_of(environment, "blue") == 1.0


TITLED = """
said(ask([{"role": "system", "content": "You write titles."}, user("?")]))
print(said(ask([user("?")]))["content"])
"""


def test_calls_that_match_a_rule_are_left_out_of_the_loss(play: Play) -> None:
    environment = play(TITLED, untrained=["write titles"])
    assert environment.start().terms == TurnTerms(trained=False)
    assert environment.call("A colour").terms == TurnTerms()
    assert environment.call("blue").reward == 1.0


def test_a_rule_that_is_no_pattern_is_refused(play: Play) -> None:
    with pytest.raises(ItemError, match="option untrained: '\\('"):
        play(TITLED, untrained=["("])


def test_the_reward_is_given_every_conversation(play: Play, tmp_path: Path) -> None:
    environment = play(TITLED, reward="ends")
    environment.start()
    environment.call("A colour")
    assert environment.call("blue").reward == 2.0
    assert json.loads((tmp_path / "told.json").read_text()) == ["A colour", "blue"]


def test_a_reward_may_be_of_each_conversation(play: Play) -> None:
    environment = play(TITLED, reward="each")
    environment.start()
    environment.call("A colour")
    outcome = environment.call("blue")
    assert (outcome.reward, outcome.branch_rewards) == (2.0, {2: 0.5})
