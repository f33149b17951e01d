"""Tables, bars and text as HTML of our own."""

import re
from typing import Any

from agentrl.dashboard import markup
from agentrl.dashboard.markup import Link


def test_rows_with_other_columns_keep_their_cells_below_the_right_head(tables_in: Any) -> None:
    rows = [{"run": "a", "kg": "60%"}, {"run": "b", "os": "40%"}, {"run": "c", "kg": None}]
    (found,) = tables_in(markup.table(rows))
    assert found == {"run": ["a", "b", "c"], "kg": ["60%", "–", "–"], "os": ["–", "40%", "–"]}


def test_numbers_are_short_and_whole_numbers_are_whole(tables_in: Any) -> None:
    rows = [{"is": value} for value in (0.123456, 25600, 1234567.8, 0.0)]
    (found,) = tables_in(markup.table(rows))
    assert found["is"] == ["0.1235", "25600", "1,234,568", "0"]


def test_the_longest_bar_comes_first_and_the_others_are_parts_of_it() -> None:
    html = markup.bars({"open": 0, "ready": 50, "trained": 2000})
    assert re.findall(r"<td>(\w+)</td>", html) == ["trained", "ready", "open"]
    assert re.findall(r'; width: ([\d.]+)%"', html) == ["100.0", "2.5", "0.0"]
    assert re.findall(r'number">([\d,]+)<', html) == ["2,000", "50", "0"]
    assert "100.0" not in markup.bars({"open": 0})


def test_what_others_wrote_is_never_html() -> None:
    evil = "<script>&"
    for html in (
        markup.table([{evil: evil}, {evil: Link(evil, evil)}]),
        markup.folded_table(evil, [{evil: evil}]),
        markup.bars({evil: 1}),
        markup.plain(evil),
    ):
        assert "<script" not in html
        assert "&lt;script&gt;&amp;" in html
