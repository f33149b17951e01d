from pathlib import Path

import pytest
from protocol_machine import check


def test_the_protocol_holds_for_a_while(template: Path) -> None:
    assert check(template, examples=2, steps=25) > 25


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_protocol_holds_for_ten_thousand_steps(template: Path) -> None:
    assert check(template, examples=50, steps=250) > 10_000
