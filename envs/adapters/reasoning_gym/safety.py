"""Which answers a dataset's scorer may see: several scorers evaluate the answer as Python.

`eval` of an agent's text would run whatever it says in this process. Those datasets get an answer
only if it is a literal or a short arithmetic expression; every other answer counts as none. So does
a number of a huge power of ten for a scorer that writes it out.
"""

import ast
import re

# Their scorers call `eval`, and compare the value with a text.
LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
# Their scorers call sympy's `parse_expr`, which evaluates.
EXPRESSIONS = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)

FRACTIONS = frozenset({"coin_flip"})  # their scorers call `Fraction`, without the commas

LONGEST = 2000  # characters of an expression
LARGEST_POWER = 100  # exponents; a tower of powers would take for ever
NESTED = 2  # calls and powers inside each other
FUNCTIONS = frozenset(
    {"Abs", "acos", "asin", "atan", "cos", "cosh", "cot", "csc", "exp", "ln", "log", "sec", "sin"}
    | {"sinh", "sqrt", "tan", "tanh"}
)
_LARGE_EXPONENT = re.compile(r"[eE][+-]?[\d_]{4,}")  # 1e1000000000 would take minutes
_LITERAL = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.UnaryOp, ast.USub)
_ARITHMETIC = (
    *(ast.Expression, ast.Name, ast.Load, ast.UnaryOp, ast.USub, ast.UAdd),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow),
)


def is_safe(dataset: str, answer: str) -> bool:
    """Whether the dataset's scorer may see the answer."""
    if dataset in LITERALS:
        tree = _parsed(answer)
        return tree is None or all(isinstance(each, _LITERAL) for each in ast.walk(tree))
    if dataset in EXPRESSIONS:
        tree = _parsed(answer) if len(answer) <= LONGEST else None
        return tree is not None and _is_arithmetic(tree, NESTED)
    return dataset not in FRACTIONS or not _LARGE_EXPONENT.search(answer.replace(",", ""))


def _parsed(answer: str) -> ast.AST | None:
    """None where it is no expression, so that nothing can be evaluated."""
    try:
        return ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_arithmetic(node: ast.AST, depth: int) -> bool:
    """`depth`: how many calls and powers may still lie inside each other."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
        inside = node.args
        return named and not node.keywords and depth > 0 and _all(inside, depth - 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        tower = any(isinstance(each, ast.Pow) for each in ast.walk(node.left))
        small = _is_small_power(node.right) and not tower
        return small and depth > 0 and _all([node.left], depth - 1)
    return isinstance(node, _ARITHMETIC) and _all(list(ast.iter_child_nodes(node)), depth)


def _all(nodes: list[ast.expr] | list[ast.AST], depth: int) -> bool:
    return all(_is_arithmetic(node, depth) for node in nodes)


def _is_small_power(node: ast.AST) -> bool:
    """A number, or a fraction of two, with a sign or without."""
    numbers = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
    kinds = (ast.Constant, ast.UnaryOp, ast.USub, ast.BinOp, ast.Div)
    return all(isinstance(each, kinds) for each in ast.walk(node)) and all(
        isinstance(each.value, int | float) and abs(each.value) <= LARGEST_POWER for each in numbers
    )
