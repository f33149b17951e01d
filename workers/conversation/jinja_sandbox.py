"""The Jinja sandbox for chat templates, as transformers has it."""

import json
from datetime import date
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# What templates write as today's date, so that a prompt, its replay and its group are equal on all
# days: the date that Llama's templates have without a clock.
_TODAY = date(2024, 7, 26)


class _Generation(Extension):
    """Leaves out `{% generation %}` and `{% endgeneration %}`, not what they enclose.

    They mark an assistant's text where transformers makes a loss mask.
    """

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def create_environment() -> ImmutableSandboxedEnvironment:
    """Create the environment in which a chat template is compiled."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _TODAY.strftime
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(text: str) -> NoReturn:
    raise TemplateError(text)
