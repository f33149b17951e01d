"""The tree of checkpoints as text, on a lineage drawn by hand."""

from agentrl.dashboard.viewmodels.checkpoints import Registry, segments, tree
from agentrl.db.registry.lineage import LineageNode


def node(name: str, version: int, parent: str | None, *, undone: bool = False) -> LineageNode:
    return LineageNode(name, version, parent, undone, version > 1)


# v0 ─ v1 ─ v2 ┬ v3 ─ v4   rolled back
#              └ v3 ─ v4 ─ v5
KNOWN = [
    node("0", 0, None),
    node("1", 1, "0"),
    node("2", 2, "1"),
    node("3", 3, "2", undone=True),
    node("3b", 3, "2"),
    node("4", 4, "3", undone=True),
    node("4b", 4, "3b"),
    node("5b", 5, "4b"),
]


def test_stretches_without_a_fork_are_one_segment() -> None:
    told = [
        (s.depth, s.first.checkpoint_id, s.last.checkpoint_id, s.number) for s in segments(KNOWN)
    ]
    assert told == [(0, "0", "2", 3), (1, "3", "4", 2), (1, "3b", "5b", 3)]
    assert [segment.present for segment in segments(KNOWN)] == [1, 2, 3]


def test_a_line_that_was_rolled_back_and_not_gone_on_from_is_its_own_segment() -> None:
    told = [(s.depth, s.first.version, s.last.version) for s in segments(KNOWN[:4])]
    assert told == [(0, 0, 2), (1, 3, 3)]


def test_the_tree_says_what_stands_and_which_is_newest() -> None:
    registry = Registry(("parent", 7), {}, KNOWN, [], [], [])
    assert tree(registry).splitlines() == [
        "parent v7",
        "└─ v0 … v2  part of the run · 1 of 3 checkpoints have files",
        "   └─ v3 … v4  rolled back · 2 of 2 checkpoints have files",
        "   └─ v3 … v5  part of the run · 3 of 3 checkpoints have files  ◀ newest",
    ]
    assert tree(Registry(("gone-run", -1), {}, [], [], [], [])) == "gone-run (gone)"
    assert tree(Registry(None, {}, [], [], [], [])) == ""


def test_fifteen_thousand_in_a_row_are_one_line() -> None:
    chain = [node(str(n), n, str(n - 1) if n else None) for n in range(15_000)]
    assert len(segments(chain)) == 1
