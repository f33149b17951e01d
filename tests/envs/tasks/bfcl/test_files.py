"""The file system."""

from typing import Any

import pytest
from executed_lines import count_lines

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.bfcl import files
from agentrl.envs.tasks.bfcl.world import World

CONFIG = {
    "root": {
        "home": {
            "type": "directory",
            "contents": {
                "a.txt": {"type": "file", "content": "pear\napple tart\nfig"},
                "b.txt": {"type": "file", "content": "pear\nplum\nfig"},
                ".secret": {"type": "file", "content": "x"},
                "old": {
                    "type": "directory",
                    "contents": {"c.txt": {"type": "file", "content": "1"}},
                },
            },
        }
    }
}


@pytest.fixture
def world() -> World:
    return World(["GorillaFileSystem"], {"GorillaFileSystem": CONFIG})


def tree(world: World) -> Any:
    return world.state()["GorillaFileSystem"]


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("pwd", {}, {"current_working_directory": "/home"}),
        ("ls", {}, {"current_directory_content": ["a.txt", "b.txt", "old"]}),
        ("ls", {"a": True}, {"current_directory_content": ["a.txt", "b.txt", ".secret", "old"]}),
        ("cat", {"file_name": "a.txt"}, {"file_content": "pear\napple tart\nfig"}),
        (
            "grep",
            {"file_name": "a.txt", "pattern": "p"},
            {"matching_lines": ["pear", "apple tart"]},
        ),
        ("sort", {"file_name": "a.txt"}, {"sorted_content": "apple tart\nfig\npear"}),
        ("tail", {"file_name": "a.txt", "lines": 2}, {"last_lines": "apple tart\nfig"}),
        ("wc", {"file_name": "a.txt"}, {"count": 3, "type": "lines"}),
        ("wc", {"file_name": "a.txt", "mode": "w"}, {"count": 4, "type": "words"}),
        ("wc", {"file_name": "a.txt", "mode": "c"}, {"count": 19, "type": "characters"}),
        (
            "diff",
            {"file_name1": "a.txt", "file_name2": "b.txt"},
            {"diff_lines": "- apple tart\n+ plum"},
        ),
        ("find", {"name": "c"}, {"matches": ["./.secret", "./old/c.txt"]}),
        ("find", {"path": "old"}, {"matches": ["old/c.txt"]}),
        ("du", {}, {"disk_usage": "34 bytes"}),
        ("du", {"human_readable": True}, {"disk_usage": "34.00 B"}),
        ("echo", {"content": "hi"}, {"terminal_output": "hi"}),
        ("cd", {"folder": "old"}, {"current_working_directory": "/home/old"}),
    ],
)
def test_what_looks_at_files_answers_and_changes_nothing(
    world: World, name: str, arguments: dict[str, Any], answer: dict[str, Any]
) -> None:
    before = World(["GorillaFileSystem"], {"GorillaFileSystem": CONFIG}).state()
    assert world.run(name, arguments) == answer
    assert world.state() == before


def test_files_are_made_moved_copied_and_removed(world: World) -> None:
    for name, arguments in [
        ("mkdir", {"dir_name": "new"}),
        ("mv", {"source": "a.txt", "destination": "new"}),
        ("mv", {"source": "b.txt", "destination": "z.txt"}),
        ("cp", {"source": "old", "destination": "new"}),
        ("touch", {"file_name": "t"}),
        ("echo", {"content": "w", "file_name": "z.txt"}),
        ("rm", {"file_name": ".secret"}),
        ("cd", {"folder": "old"}),
        ("rm", {"file_name": "c.txt"}),
        ("cd", {"folder": ".."}),
        ("rmdir", {"dir_name": "old"}),
    ]:
        assert "error" not in world.run(name, arguments), name
    assert tree(world) == {
        "new": {"a.txt": "pear\napple tart\nfig", "old": {"c.txt": "1"}},
        "z.txt": "w",
        "t": "",
    }


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("cd", {"folder": ".."}, "cd: this is the root directory"),
        ("cd", {"folder": "a.txt"}, "cd: a.txt: not a directory"),
        ("cat", {"file_name": "old"}, "cat: old: is a directory"),
        ("cat", {"file_name": "no"}, "cat: no: no such file or directory"),
        ("mkdir", {"dir_name": "old"}, "mkdir: old: is there already"),
        ("touch", {"file_name": "old/x"}, "touch: 'old/x': no path is allowed"),
        ("rmdir", {"dir_name": "old"}, "rmdir: old: directory not empty"),
        ("mv", {"source": "a.txt", "destination": "b.txt"}, "mv: b.txt: is there already"),
        ("echo", {"content": "x", "file_name": "old"}, "echo: old is a directory"),
        ("wc", {"file_name": "a.txt", "mode": "x"}, "wc: mode is l, w or c"),
        ("tail", {"file_name": "a.txt", "lines": 0}, "tail: lines is at least 1"),
        ("find", {"path": "no"}, "find: no: no such directory"),
        ("cat", {}, "cat: Object missing required field `file_name`"),
        ("cat", {"file_name": 3}, "cat: Expected `str`, got `int` - at `$.file_name`"),
        ("pwd", {"x": 1}, "pwd: Object contains unknown field `x`"),
        ("state", {}, "there is no function state"),
        ("add", {"a": 1, "b": 2}, "there is no function add"),
    ],
)
def test_what_cannot_be_done_is_told_and_changes_nothing(
    world: World, name: str, arguments: dict[str, Any], error: str
) -> None:
    before = World(["GorillaFileSystem"], {"GorillaFileSystem": CONFIG}).state()
    assert world.run(name, arguments) == {"error": error}
    assert world.state() == before


def test_a_move_that_is_refused_leaves_its_source_where_it_was(world: World) -> None:
    world.run("cp", {"source": "a.txt", "destination": "old"})
    answer = world.run("mv", {"source": "a.txt", "destination": "old"})
    assert answer == {"error": "mv: a.txt: is there already"}
    assert "a.txt" in tree(world)


def test_copies_of_copies_do_not_fill_the_machine(world: World) -> None:
    for number in range(30):
        world.run("mkdir", {"dir_name": f"d{number}"})
        world.run("cp", {"source": "old", "destination": f"d{number}"})
        world.run("cp", {"source": f"d{number}", "destination": "old"})
    assert files._count(tree(world)) <= files.MAX_NODES
    assert files._depth(tree(world)) <= files.MAX_DEPTH
    assert world.run("echo", {"content": "x" * files.MAX_CHARACTERS, "file_name": "a.txt"}) == {
        "error": "echo: the disk is full"
    }
    assert world.run("cat", {"file_name": "a.txt"})["file_content"].startswith("pear")


def test_directories_within_directories_end_at_a_depth(world: World) -> None:
    answers = []
    for _ in range(files.MAX_DEPTH + 5):
        answers.append(world.run("mkdir", {"dir_name": "d"}))
        world.run("cd", {"folder": "d"})
    assert answers[-1] == {"error": "mkdir: the disk is full"}
    assert files._depth(tree(world)) == files.MAX_DEPTH


def test_large_files_that_differ_everywhere_are_compared_place_by_place(world: World) -> None:
    for name, count in (("one", 2000), ("other", 2001)):
        content = "\n".join(f"{name} {number}" for number in range(count))
        assert "error" not in world.run("echo", {"content": content, "file_name": name})
    answer: dict[str, Any] = {}
    assert count_lines(
        lambda: answer.update(world.run("diff", {"file_name1": "one", "file_name2": "other"})),
        most=50_000,
    )
    lines = answer["diff_lines"].splitlines()
    assert (len(lines), lines[:2], lines[-1]) == (4001, ["- one 0", "+ other 0"], "+ other 2000")


def test_a_tree_that_is_too_deep_is_refused() -> None:
    node: dict[str, Any] = {"type": "directory", "contents": {}}
    for _ in range(60):
        node = {"type": "directory", "contents": {"d": node}}
    with pytest.raises(ItemError, match="more than 50 directories"):
        World(["GorillaFileSystem"], {"GorillaFileSystem": {"root": {"r": node}}})
