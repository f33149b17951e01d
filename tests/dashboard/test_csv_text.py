from agentrl.dashboard.csv_text import as_csv
from agentrl.dashboard.markup import Link


def test_rows_become_csv_with_every_column_and_a_link_as_its_text() -> None:
    rows = [{"name": Link("a,b", "/x"), "n": 1}, {"name": 'say "x"', "more": None}]
    assert as_csv(rows).splitlines() == ["name,n,more", '"a,b",1,', '"say ""x""",,']
