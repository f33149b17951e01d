"""The registry of credits (`trainer.credit`): each file of this folder that declares `CREDIT`."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import msgspec

from agentrl.core.errors import ConfigError
from agentrl.trainer.algorithm import credit
from agentrl.trainer.algorithm.credit.credit_interface import Credit


@cache
def known_credits() -> Mapping[str, Credit]:
    """Return all credits by name, which is the name of the file."""
    modules = {
        each.name: import_module(f"{credit.__name__}.{each.name}")
        for each in iter_modules(credit.__path__)
    }
    return {name: module.CREDIT for name, module in modules.items() if hasattr(module, "CREDIT")}


def read_options(name: str, given: Mapping[str, Any]) -> msgspec.Struct:
    """Return the options of a credit. Raises ConfigError for an unknown or invalid one."""
    kind = known_credits()[name].options
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.__struct_fields__) or "none"
        raise ConfigError(
            f"trainer.credit_options: {error}", hint=f'options of credit = "{name}": {known}'
        ) from error
