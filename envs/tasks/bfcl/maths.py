"""MathAPI: arithmetic without a state."""

import math
import statistics
from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from typing import Any

import msgspec

from agentrl.envs.tasks.bfcl.api import Answer, Number, RefusedError

MAX_PRECISION = 50  # significant digits
MAX_DECIMALS = 300
MAX_BITS = 1024  # of an integer
_EXACT = 2**53  # below, a float holds every integer
_SI = {"km": 1e3, "m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "nm": 1e-9}
_IMPERIAL: Mapping[tuple[str, str], float] = {
    ("km", "miles"): 1 / 1.609344,
    ("m", "feet"): 1 / 0.3048,
    ("cm", "inches"): 1 / 2.54,
    ("kg", "pounds"): 1 / 0.45359237,
}


class Config(msgspec.Struct, frozen=True):
    """Nothing."""


class Maths:
    """An Api."""

    def state(self) -> None:
        return None

    def add(self, a: Number, b: Number) -> Answer:
        """Add two numbers."""
        return _result(lambda: a + b)

    def subtract(self, a: Number, b: Number) -> Answer:
        """Subtract b from a."""
        return _result(lambda: a - b)

    def multiply(self, a: Number, b: Number) -> Answer:
        """Multiply two numbers."""
        return _result(lambda: a * b)

    def divide(self, a: Number, b: Number) -> Answer:
        """Divide a by b."""
        return _result(lambda: a / b)

    def power(self, base: Number, exponent: Number) -> Answer:
        """Raise a number to a power."""
        return _result(lambda: _whole(math.pow(base, exponent), base, exponent))

    def percentage(self, part: Number, whole: Number) -> Answer:
        """Tell what percentage a part is of a whole."""
        return _result(lambda: part / whole * 100)

    def absolute_value(self, number: Number) -> Answer:
        """Tell the absolute value of a number."""
        return _result(lambda: abs(number))

    def round_number(self, number: Number, decimal_places: int = 0) -> Answer:
        """Round a number to so many decimal places."""
        if abs(decimal_places) > MAX_DECIMALS:
            raise RefusedError(f"round_number: decimal_places is at most {MAX_DECIMALS}")
        return _result(lambda: round(number, decimal_places))

    def max_value(self, numbers: list[Number]) -> Answer:
        """Find the largest number of a list."""
        return _result(lambda: max(numbers))

    def min_value(self, numbers: list[Number]) -> Answer:
        """Find the smallest number of a list."""
        return _result(lambda: min(numbers))

    def sum_values(self, numbers: list[Number]) -> Answer:
        """Sum a list of numbers."""
        return _result(lambda: sum(numbers))

    def mean(self, numbers: list[Number]) -> Answer:
        """Tell the mean of a list of numbers."""
        return _result(lambda: sum(numbers) / len(numbers))

    def standard_deviation(self, numbers: list[Number]) -> Answer:
        """Tell the standard deviation of a list of numbers, over all of them."""
        return _result(lambda: statistics.pstdev(map(float, numbers)))

    def square_root(self, number: Number, precision: int) -> Answer:
        """Tell the square root of a number to so many significant digits."""
        return _precise(precision, lambda: Decimal(str(number)).sqrt())

    def logarithm(self, value: Number, base: Number, precision: int) -> Answer:
        """Tell the logarithm of a value to a base, to so many significant digits."""
        return _precise(precision, lambda: Decimal(str(value)).ln() / Decimal(str(base)).ln())

    def si_unit_conversion(self, value: Number, unit_in: str, unit_out: str) -> Answer:
        """Convert a length between SI units: km, m, cm, mm, um, nm."""
        if unit_in not in _SI or unit_out not in _SI:
            raise RefusedError(f"si_unit_conversion: {unit_in} to {unit_out} is not known")
        return _result(lambda: value * (_SI[unit_in] / _SI[unit_out]))

    def imperial_si_conversion(self, value: Number, unit_in: str, unit_out: str) -> Answer:
        """Convert between km and miles, m and feet, cm and inches, kg and pounds, C and F."""
        if (unit_in, unit_out) == ("celsius", "fahrenheit"):
            return _result(lambda: value * 9 / 5 + 32)
        if (unit_in, unit_out) == ("fahrenheit", "celsius"):
            return _result(lambda: (value - 32) * 5 / 9)
        if (unit_in, unit_out) in _IMPERIAL:
            return _result(lambda: value * _IMPERIAL[unit_in, unit_out])
        if (unit_out, unit_in) in _IMPERIAL:
            return _result(lambda: value / _IMPERIAL[unit_out, unit_in])
        raise RefusedError(f"imperial_si_conversion: {unit_in} to {unit_out} is not known")


def read(config: Mapping[str, Any]) -> Maths:
    """Raises msgspec.ValidationError."""
    msgspec.convert(config, Config)
    return Maths()


def _result(compute: Callable[[], Number]) -> Answer:
    try:
        found = compute()
    except (ArithmeticError, ValueError) as error:
        raise RefusedError(str(error) or type(error).__name__) from error
    if isinstance(found, int) and found.bit_length() > MAX_BITS:
        raise RefusedError("the result is too large")
    return {"result": found}


def _precise(precision: int, compute: Callable[[], Decimal]) -> Answer:
    if not 1 <= precision <= MAX_PRECISION:
        raise RefusedError(f"precision is from 1 to {MAX_PRECISION}")
    try:
        with localcontext() as context:
            context.prec = precision + 2  # of two logarithms, before their ratio is rounded
            found = compute()
            context.prec = precision
            result = float(+found)
    except (ArithmeticError, ValueError) as error:
        raise RefusedError("no such root or logarithm") from error
    if not math.isfinite(result):
        raise RefusedError("no such root or logarithm")
    return {"result": result}


def _whole(value: float, *of: Number) -> Number:
    """An integer where all it was made of are, and it is exact."""
    whole = all(isinstance(each, int) for each in of) and value.is_integer()
    return int(value) if whole and abs(value) < _EXACT else value
