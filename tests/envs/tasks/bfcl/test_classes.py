"""Numbers, messages, tickets and posts."""

from typing import Any

import pytest

from agentrl.envs.tasks.bfcl.world import World

Call = tuple[str, dict[str, Any]]


def world(kind: str, **config: Any) -> World:
    return World([kind], {kind: config})


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("add", {"a": 1, "b": 2}, 3),
        ("subtract", {"a": 1, "b": 2.5}, -1.5),
        ("multiply", {"a": 3, "b": 4}, 12),
        ("divide", {"a": 1, "b": 4}, 0.25),
        ("power", {"base": 2, "exponent": 10}, 1024),
        ("power", {"base": 2.0, "exponent": -1}, 0.5),
        ("percentage", {"part": 1, "whole": 8}, 12.5),
        ("absolute_value", {"number": -3}, 3),
        ("round_number", {"number": 2.345, "decimal_places": 1}, 2.3),
        ("max_value", {"numbers": [1, 3, 2]}, 3),
        ("min_value", {"numbers": [1, 3, 2]}, 1),
        ("sum_values", {"numbers": [1, 3, 2]}, 6),
        ("mean", {"numbers": [3, 16, 60]}, 79 / 3),
        ("standard_deviation", {"numbers": [2, 4, 4, 4, 5, 5, 7, 9]}, 2.0),
        ("square_root", {"number": 2, "precision": 4}, 1.414),
        ("logarithm", {"value": 8, "base": 2, "precision": 5}, 3.0),
        ("si_unit_conversion", {"value": 3, "unit_in": "km", "unit_out": "cm"}, 300000.0),
        ("imperial_si_conversion", {"value": 1.609344, "unit_in": "km", "unit_out": "miles"}, 1.0),
        ("imperial_si_conversion", {"value": 2, "unit_in": "inches", "unit_out": "cm"}, 5.08),
        (
            "imperial_si_conversion",
            {"value": 100, "unit_in": "celsius", "unit_out": "fahrenheit"},
            212.0,
        ),
    ],
)
def test_arithmetic(name: str, arguments: dict[str, Any], result: float) -> None:
    assert world("MathAPI").run(name, arguments) == {"result": pytest.approx(result)}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("divide", {"a": 1, "b": 0}),
        ("power", {"base": 10, "exponent": 1e9}),
        ("power", {"base": -8, "exponent": 0.5}),
        ("mean", {"numbers": []}),
        ("max_value", {"numbers": []}),
        ("multiply", {"a": 2**1000, "b": 2**1000}),
        ("square_root", {"number": -1, "precision": 3}),
        ("square_root", {"number": 2, "precision": 10**9}),
        ("logarithm", {"value": 0, "base": 2, "precision": 3}),
        ("logarithm", {"value": 8, "base": 1, "precision": 3}),
        ("round_number", {"number": 1.5, "decimal_places": 10**9}),
        ("si_unit_conversion", {"value": 1, "unit_in": "km", "unit_out": "mile"}),
        ("add", {"a": True, "b": 1}),
    ],
)
def test_what_has_no_result_is_told(name: str, arguments: dict[str, Any]) -> None:
    assert list(world("MathAPI").run(name, arguments)) == ["error"]


def test_messages_are_sent_found_and_deleted() -> None:
    here = world("MessageAPI", inbox=[{"USR002": ["at three"]}, {"USR001": "Read it"}])
    assert "error" in here.run("send_message", {"receiver_id": "USR002", "message": "x"})
    assert here.run("message_login", {"user_id": "USR001"})["login_status"] is True
    assert here.run("add_contact", {"user_name": "Eve"})["user_id"] == "USR005"
    assert here.run("get_user_id", {"user": "Eve"}) == {"user_id": "USR005"}
    sent = here.run("send_message", {"receiver_id": "USR005", "message": "Read that"})
    assert sent["sent_status"] is True
    assert here.run("view_messages_sent", {}) == {
        "messages": {"USR002": ["at three"], "USR001": ["Read it"], "USR005": ["Read that"]}
    }
    assert here.run("search_messages", {"keyword": "read"})["results"] == [
        {"receiver_id": "USR001", "message": "Read it"},
        {"receiver_id": "USR005", "message": "Read that"},
    ]
    assert here.run("get_message_stats", {}) == {
        "stats": {"received_count": 1, "total_contacts": 2}
    }
    assert here.run("delete_message", {"receiver_id": "USR005"})["deleted_status"] is True
    left = {"USR002": ["at three"], "USR001": ["Read it"]}
    assert here.run("view_messages_sent", {}) == {"messages": left}
    assert "error" in here.run("delete_message", {"receiver_id": "USR005"})
    assert "error" in here.run("get_user_id", {"user": "Zoe"})


def test_tickets_are_opened_changed_and_closed() -> None:
    here = world("TicketAPI", ticket_queue=[{"id": 7, "status": "Open"}], ticket_counter=8)
    assert "error" in here.run("create_ticket", {"title": "t"})
    assert here.run("ticket_login", {"username": "sam", "password": ""}) == {"success": False}
    assert here.run("ticket_login", {"username": "sam", "password": "p"}) == {"success": True}
    assert here.run("create_ticket", {"title": "t", "priority": 3}) == {
        "id": 8,
        "title": "t",
        "description": "",
        "status": "Open",
        "priority": 3,
        "created_by": "sam",
    }
    assert "error" in here.run("create_ticket", {"title": "t", "priority": 6})
    here.run("edit_ticket", {"ticket_id": 8, "updates": {"priority": 5, "title": "u"}})
    assert "error" in here.run("edit_ticket", {"ticket_id": 8, "updates": {"id": 9}})
    assert "error" in here.run("edit_ticket", {"ticket_id": 8, "updates": {"priority": 9}})
    here.run("close_ticket", {"ticket_id": 8})
    here.run("resolve_ticket", {"ticket_id": 7, "resolution": "fixed"})
    assert here.run("get_user_tickets", {"status": "Open"}) == {"tickets": []}
    closed = here.run("get_user_tickets", {})["tickets"]
    assert [(each["title"], each["priority"], each["status"]) for each in closed] == [
        ("u", 5, "Closed")
    ]
    assert here.run("get_ticket", {"ticket_id": 7}) == {
        "id": 7,
        "status": "Resolved",
        "resolution": "fixed",
    }
    assert here.run("logout", {}) == {"success": True}
    assert here.run("ticket_get_login_status", {}) == {"login_status": False}


def test_posts_are_made_commented_on_and_shared() -> None:
    tweet = {"id": 0, "username": "amy", "content": "Hello", "tags": ["#Hi"], "mentions": []}
    here = world("TwitterAPI", username="sam", password="p", tweets={"0": tweet}, tweet_counter=1)
    assert "error" in here.run("post_tweet", {"content": "no"})
    wrong = {"username": "sam", "password": "q"}
    assert here.run("authenticate_twitter", wrong) == {"authentication_status": False}
    assert here.run("posting_get_login_status", {}) == {"login_status": False}
    here.run("authenticate_twitter", {"username": "sam", "password": "p"})
    posted = here.run("post_tweet", {"content": "A", "tags": ["#b"]})
    assert posted == {"id": 1, "username": "sam", "content": "A", "tags": ["#b"], "mentions": []}
    here.run("mention", {"tweet_id": 1, "mentioned_usernames": ["@amy"]})
    assert here.run("get_tweet", {"tweet_id": 1})["mentions"] == ["@amy"]
    here.run("comment", {"tweet_id": 0, "comment_content": "Hi!"})
    assert here.run("get_tweet_comments", {"tweet_id": 0}) == {
        "comments": [{"username": "sam", "content": "Hi!"}]
    }
    here.run("retweet", {"tweet_id": 0})
    here.run("retweet", {"tweet_id": 0})
    assert here.run("follow_user", {"username_to_follow": "amy"}) == {"follow_status": True}
    assert here.run("follow_user", {"username_to_follow": "amy"}) == {"follow_status": False}
    here.run("unfollow_user", {"username_to_unfollow": "bob"})
    assert here.run("list_all_following", {}) == {"following_list": ["alice", "amy"]}
    assert here.run("get_user_stats", {"username": "sam"}) == {
        "tweet_count": 1,
        "following_count": 2,
        "retweet_count": 1,
    }
    found = here.run("search_tweets", {"keyword": "hi"})["matching_tweets"]
    assert [each["id"] for each in found] == [0]
    own = here.run("get_user_tweets", {"username": "sam"})["user_tweets"]
    assert [each["id"] for each in own] == [1]
    assert "error" in here.run("comment", {"tweet_id": 9, "comment_content": "x"})
