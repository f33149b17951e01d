from importlib.util import find_spec

import pytest

from agentrl.core.former_modules import FORMER, import_hint


@pytest.mark.parametrize("former", sorted(FORMER))
def test_a_former_module_is_named_with_one_that_exists(former: str) -> None:
    present = f"agentrl.{FORMER[former]}"
    assert find_spec(present)
    assert import_hint(ModuleNotFoundError("gone", name=f"agentrl.{former}")) == f"import {present}"


@pytest.mark.parametrize("folder", ["agentrl.core.config.sections", "agentrl.db.models"])
def test_a_name_of_a_module_that_became_a_folder_is_looked_for_in_its_modules(folder: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(f"from {folder} import Run")  # noqa: S102 - as old code does
    assert import_hint(caught.value) == f"import a module of {folder}"


def test_a_module_that_never_was_ours_has_no_hint() -> None:
    assert import_hint(ModuleNotFoundError("gone", name="numpy.nothing")) == ""
