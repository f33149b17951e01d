"""Calls on the benchmark's classes: their results, and their bounds."""

from typing import Any

import mpmath
import pytest

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.bfcl.simulation import FULL, MAX_DEPTH, MAX_NODES, Simulation

CONTENTS = {
    "a.txt": {"type": "file", "content": "pear\nfig"},
    "old": {"type": "directory", "contents": {"c.txt": {"type": "file", "content": "1"}}},
}
CONFIG = {"root": {"home": {"type": "directory", "contents": CONTENTS}}}


def files() -> Simulation:
    return Simulation(["GorillaFileSystem"], {"GorillaFileSystem": CONFIG})


def maths() -> Simulation:
    return Simulation(["MathAPI"], {})


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("ls", {}, '{"current_directory_content": ["a.txt", "old"]}'),
        ("mkdir", {"dir_name": "new"}, "None"),
        ("cat", {}, "Error during execution: GorillaFileSystem.cat() missing 1 required "),
        ("cat", {"file_name": 3}, "Error during execution: argument of type 'int' is not"),
        ("pwd", {"self": 1}, "Error during execution: "),
        ("add", {"a": 1, "b": 2}, "Error during execution: name 'add' is not defined"),
        ("_load_scenario", {}, "Error during execution: name '_load_scenario' is not defined"),
    ],
)
def test_a_result_is_text_and_a_failure_is_an_error(
    name: str, arguments: dict[str, Any], result: str
) -> None:
    assert files().run(name, arguments).startswith(result)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("power", {"base": 10, "exponent": 10**9}),
        ("power", {"base": 2**4000, "exponent": 4000}),
        ("square_root", {"number": 2, "precision": 10**9}),
        ("logarithm", {"value": 8, "base": 2, "precision": 10**9}),
        ("logarithm", {"value": "1e999999999", "base": 2, "precision": 9}),
        ("logarithm", {"value": 8, "base": 2, "precision": "999999999"}),
        ("round_number", {"number": 5, "decimal_places": -(10**9)}),
        ("round_number", {"number": 5, "decimal_places": [1]}),
    ],
)
def test_endless_arithmetic_is_answered_at_once(name: str, arguments: dict[str, Any]) -> None:
    assert maths().run(name, arguments).startswith("Error during execution: ")


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("power", {"base": 2, "exponent": 10}, '{"result": 1024}'),
        ("power", {"base": 1, "exponent": 10**9}, '{"result": 1}'),
        ("power", {"base": 2, "exponent": -1}, '{"result": 0.5}'),
        ("logarithm", {"value": 8, "base": 2, "precision": 5}, "{'result': mpf('3.0')}"),
        ("square_root", {"number": 2, "precision": 4}, "{'result': Decimal('1.414')}"),
        (
            "si_unit_conversion",
            {"value": 3, "unit_in": "km", "unit_out": "m"},
            '{"result": 3000.0}',
        ),
    ],
)
def test_arithmetic_is_the_benchmarks(name: str, arguments: dict[str, Any], result: str) -> None:
    assert maths().run(name, arguments) == result


def test_the_precision_of_a_call_does_not_outlive_it() -> None:
    before = mpmath.mp.dps
    maths().run("logarithm", {"value": 8, "base": 2, "precision": 40})
    assert mpmath.mp.dps == before


def test_copies_of_copies_fill_the_disk() -> None:
    simulation = files()
    for number in range(30):
        simulation.run("mkdir", {"dir_name": f"d{number}"})
        simulation.run("cp", {"source": "old", "destination": f"d{number}"})
        simulation.run("cp", {"source": f"d{number}", "destination": "old"})
    assert simulation.run("ls", {}) == FULL


def test_a_directory_that_contains_itself_fills_the_disk() -> None:
    simulation = files()
    assert simulation.run("cp", {"source": "old", "destination": "old"}) == FULL


def test_too_many_or_too_deep_directories_fill_the_disk() -> None:
    wide, deep = files(), files()
    results = [wide.run("touch", {"file_name": f"f{n}"}) for n in range(MAX_NODES)]
    assert (results[0], results[-1]) == ("None", FULL)
    for _ in range(MAX_DEPTH):
        deep.run("mkdir", {"dir_name": "d"})
        deep.run("cd", {"folder": "d"})
    assert deep.is_full


def test_an_item_with_too_many_files_is_refused() -> None:
    many = {f"f{n}": {"type": "file", "content": ""} for n in range(MAX_NODES + 1)}
    config = {"root": {"home": {"type": "directory", "contents": many}}}
    with pytest.raises(ItemError, match="more than 2000 files"):
        Simulation(["GorillaFileSystem"], {"GorillaFileSystem": config})


def test_arguments_and_tables_are_not_shared_between_episodes() -> None:
    """The class keeps what it is given, and in a long context rows of its module's tables."""
    tags = ["#a"]
    twitter = {"TwitterAPI": {"authenticated": True}}
    one = Simulation(["TwitterAPI"], twitter)
    one.run("post_tweet", {"content": "x", "tags": tags})
    one.instances["TwitterAPI"].tweets[0]["tags"].append("#b")
    assert tags == ["#a"]
    first, second = (Simulation(["TravelAPI"], {}, long_context=True) for _ in range(2))
    card = next(iter(first.instances["TravelAPI"].credit_card_list))
    before = second.instances["TravelAPI"].credit_card_list[card]["balance"]
    first.instances["TravelAPI"]._set_card_balance(card, -1)
    assert second.instances["TravelAPI"].credit_card_list[card]["balance"] == before
