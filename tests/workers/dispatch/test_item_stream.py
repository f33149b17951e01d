from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.contract import Item
from agentrl.workers.dispatch.item_stream import ItemStream


def _stream(count: int, seed: int) -> ItemStream:
    return ItemStream([Item("t", f"i{n}", {}) for n in range(count)], seed)


@given(count=st.integers(1, 12), seed=st.integers(), rounds=st.integers(1, 4))
def test_each_pass_holds_every_item_once_whatever_is_asked_first(
    count: int, seed: int, rounds: int
) -> None:
    assert len(_stream(count, seed)) == count
    stream, places = _stream(count, seed), range(count * rounds)
    ids = [stream.at(place).item_id for place in places]
    for start in places[::count]:
        assert sorted(ids[start : start + count]) == sorted(stream.by_id)
    again = _stream(count, seed)
    assert [again.at(place).item_id for place in reversed(places)] == ids[::-1]
