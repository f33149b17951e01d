from importlib.util import find_spec

import pytest

from agentrl.core.former_modules import FORMER, import_hint


@pytest.mark.parametrize("former", sorted(FORMER))
def test_a_former_module_is_named_with_one_that_exists(former: str) -> None:
    present = f"agentrl.{FORMER[former]}"
    assert find_spec(present)
    assert import_hint(ModuleNotFoundError("gone", name=f"agentrl.{former}")) == f"import {present}"


def test_a_module_that_never_was_ours_has_no_hint() -> None:
    assert import_hint(ModuleNotFoundError("gone", name="numpy.nothing")) == ""
