"""Arithmetic written in Python, evaluated in this process: an interpreter without a sandbox.

It walks the syntax tree and computes what it knows; nothing is compiled or run as Python. It knows
numbers, variables, operators and the functions below. Code has no loops, and every number is
bounded, so each call ends soon and needs little memory.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from agentrl.envs.tasks.maths.problem import Execution

LONGEST = 2000  # characters of one call
MAX_BITS = 1024  # of an integer, and of both parts of a fraction
MAX_COUNT = 1000  # the argument of a factorial; how many of a set are chosen
MAX_SET = 10**6  # of which they are chosen
MAX_DIGITS = 100  # to which a number is rounded

Number = int | float | Fraction


class NotArithmetic(Exception):
    """The code is more than arithmetic, or a number is too large."""


class Calculator:
    """An Interpreter of arithmetic."""

    def __init__(self) -> None:
        self._variables: dict[str, Number] = dict(CONSTANTS)

    def run(self, code: str) -> Execution:
        printed: list[str] = []
        try:
            self._run(_parse(code), printed)
        except NotArithmetic as error:
            return Execution("\n".join(printed), f"Error: {error}")
        except SyntaxError as error:
            return Execution("", f"SyntaxError: {error.msg}")
        except RecursionError:
            return Execution("\n".join(printed), "Error: the expression is nested too deeply")
        except (ArithmeticError, ValueError, TypeError) as error:
            return Execution("\n".join(printed), f"{type(error).__name__}: {error}")
        return Execution("\n".join(printed))

    def close(self) -> None: ...

    def _run(self, code: ast.Module, printed: list[str]) -> None:
        """Run the statements; print what `print` is given, and the last one's value."""
        for statement in code.body:
            match statement:
                case ast.Expr(ast.Call(ast.Name("print"), values, [])):
                    printed.append(" ".join(str(self._value(each)) for each in values))
                case ast.Expr(expression):
                    value = self._value(expression)
                    if statement is code.body[-1]:
                        printed.append(str(value))
                case ast.Assign([ast.Name(name)], expression):
                    self._variables[name] = self._value(expression)
                case ast.AugAssign(ast.Name(name), sign, expression):
                    mine = self._value(ast.Name(name))
                    self._variables[name] = _combine(sign, mine, self._value(expression))
                case ast.Import() | ast.ImportFrom() if _is_known_import(statement):
                    pass
                case _:
                    raise _refusal(statement)

    def _value(self, node: ast.expr) -> Number:
        match node:
            case ast.Constant(int() | float() as value) if not isinstance(value, bool):
                return _bounded(value)
            case ast.Name(name) if name in self._variables:
                return self._variables[name]
            case ast.Attribute(ast.Name("math"), name) if name in CONSTANTS:
                return CONSTANTS[name]
            case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, operand):
                return self._value(operand) * (-1 if isinstance(sign, ast.USub) else 1)
            case ast.BinOp(left, sign, right):
                return _combine(sign, self._value(left), self._value(right))
            case ast.Call(function, values, []):
                return self._called(_function_name(function), values)
            case ast.Name(name):
                raise NotArithmetic(f"name {name[:40]!r} is not defined")
            case _:
                raise _refusal(node)

    def _called(self, name: str, values: list[ast.expr]) -> Number:
        if name not in FUNCTIONS:
            raise NotArithmetic(f"there is no function {name[:40]!r} here")
        return _bounded(FUNCTIONS[name](*map(self._value, values)))


def _parse(code: str) -> ast.Module:
    if len(code) > LONGEST:
        raise NotArithmetic(f"the code is longer than {LONGEST} characters")
    try:
        return ast.parse(code.strip())
    except MemoryError as error:  # of the parser, which has a stack of its own
        raise RecursionError from error


def _is_known_import(statement: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(statement, ast.Import):
        return all(each.name == "math" and not each.asname for each in statement.names)
    known = {"*", *FUNCTIONS, *CONSTANTS} if statement.module in ("math", "fractions") else set()
    return all(each.name in known and not each.asname for each in statement.names)


def _function_name(node: ast.expr) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(ast.Name("math"), name):
            return name
        case _:
            raise _refusal(node)


def _refusal(node: ast.AST) -> NotArithmetic:
    return NotArithmetic(f"only arithmetic is understood here, not {type(node).__name__}")


def _combine(sign: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(sign, ast.Pow):
        return _bounded(_power(left, right))
    if type(sign) not in OPERATORS:
        raise _refusal(sign)
    return _bounded(OPERATORS[type(sign)](left, right))


def _power(base: Number, exponent: Number, modulus: Number | None = None) -> Any:
    """Refuse a power before it is computed if it would be too large."""
    if modulus is not None:
        return pow(base, exponent, modulus)  # type: ignore[arg-type]  # a TypeError is told
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        exponent = int(exponent)
    if isinstance(exponent, Fraction):
        return float(base) ** float(exponent)
    if isinstance(exponent, int) and not isinstance(base, float):
        bits = _bits(base)
        if bits > 1 and bits * abs(exponent) > 2 * MAX_BITS:
            raise NotArithmetic("the power is too large")
    return base**exponent


def _bits(value: int | Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Any) -> Number:
    """Return a number that is not too large."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise NotArithmetic("the result is too large")
    if not isinstance(value, int | Fraction):
        raise NotArithmetic(f"the result is no real number but {type(value).__name__}")
    if _bits(value) > MAX_BITS:
        raise NotArithmetic("the result is too large")
    return value


def _factorial(of: int) -> int:
    if of > MAX_COUNT:
        raise NotArithmetic("the factorial is too large")
    return math.factorial(of)


def _chosen(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def bounded(of: int, chosen: int) -> int:
        if of > MAX_SET or chosen > MAX_COUNT:
            raise NotArithmetic("there are too many ways to choose")
        return function(of, chosen)

    return bounded


def _rounded(value: Number, digits: int | None = None) -> Number:
    if digits is not None and abs(digits) > MAX_DIGITS:
        raise NotArithmetic("there are too many digits to round to")
    return round(value, digits)


OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_OF_MATH = (
    *("acos", "asin", "atan", "atan2", "ceil", "cos", "degrees", "exp", "floor", "gcd", "hypot"),
    *("isqrt", "lcm", "log", "log10", "log2", "radians", "sin", "sqrt", "tan", "trunc"),
)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in _OF_MATH},
    "Fraction": Fraction,
    "abs": abs,
    "comb": _chosen(math.comb),
    "factorial": _factorial,
    "float": float,
    "int": int,
    "max": max,
    "min": min,
    "perm": _chosen(math.perm),
    "pow": _power,
    "round": _rounded,
}
