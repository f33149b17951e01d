import pytest
from protocol_machine import check
from protocol_stores import Database


def test_the_protocol_holds_for_a_while(sqlite: Database) -> None:
    assert check(sqlite, examples=2, steps=25) > 25


def test_the_protocol_holds_for_a_while_on_postgres(postgres: Database) -> None:
    """With a real pool and real errors: sessions that end, read-only, locked, no connection."""
    assert check(postgres, examples=3, steps=15) > 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_protocol_holds_for_ten_thousand_steps(sqlite: Database) -> None:
    assert check(sqlite, examples=50, steps=250) > 10_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_protocol_holds_for_two_thousand_steps_on_postgres(postgres: Database) -> None:
    assert check(postgres, examples=10, steps=250) > 2_000
