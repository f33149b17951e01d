import pytest

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item
from agentrl.envs.item_choice import ITEM_CHOICE, index_items, sample_items


def test_some_items_of_a_sorted_split_are_of_all_kinds() -> None:
    items = [Item("kg", f"{kind}-{number}", {}) for kind in "abc" for number in range(50)]
    some, more, every = (sample_items(items, count) for count in (20, 40, 500))
    assert some == sample_items(items, 20)
    assert more[:20] == some
    assert {item.item_id[0] for item in some} == set("abc")
    assert sorted(every, key=items.index) == items


def test_the_choice_of_items_has_the_name_that_stands_in_the_ids_of_evaluations() -> None:
    """Another order needs another name, or evaluations mix the items of both."""
    items = [Item("kg", str(number), {}) for number in range(8)]
    order = "".join(item.item_id for item in sample_items(items, 8))
    assert (ITEM_CHOICE, order) == ("golden ratio", "05274163")


def test_an_id_that_repeats_is_refused_as_one_of_its_items_could_never_be_played() -> None:
    one, other = Item("kg", "q1", {"n": 1}), Item("kg", "q2", {"n": 1})
    assert index_items([one, other]) == {"q1": one, "q2": other}
    with pytest.raises(ItemError, match="task kg: the id q1 occurs twice"):
        index_items([one, other, Item("kg", "q1", {"n": 2})])
