import pytest
from protocol_machine import Protocol, check


def test_the_protocol_holds_for_a_while() -> None:
    check(examples=2, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_protocol_holds_for_ten_thousand_steps() -> None:
    before = Protocol.steps
    check(examples=50, steps=250)
    assert Protocol.steps - before > 10_000
