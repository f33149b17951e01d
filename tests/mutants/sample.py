"""Choose the mutants of `make mutants`: reduce a cosmic-ray session to a seeded sample of lines.

A line is ranked by a hash of the seed, its function's name and its own text. What the sample holds
therefore stays in it while other lines change, and when a file is renamed.
"""

import ast
import hashlib
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, WorkItem

Settings = dict[str, Any]


class Module:
    """The source of one module, and which places of it no mutant may touch."""

    def __init__(self, source: str, settings: Settings) -> None:
        self.lines = source.splitlines()
        self._settings = settings
        self._nodes = list(ast.walk(ast.parse(source)))
        self._left_out = [span for node in self._nodes for span in self._exclusions(node)]

    def allows(self, mutation: MutationSpec) -> bool:
        """Whether a test could be expected to notice `mutation`."""
        name = mutation.operator_name
        line, column = mutation.start_pos
        text = self.lines[line - 1]
        place = (line, len(text[:column].encode()) + text.lstrip().startswith("@"))
        swapped = re.search("_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt)$", name)
        return (
            any(re.search(pattern + "$", name) for pattern in self._settings["operators"])
            and ("ReplaceBinaryOperator" not in name or self._in_arithmetic(place))
            and not (swapped and re.search(self._settings["clocks"], text))
            and not any(_contains(node, place) for node in self._left_out)
        )

    def _in_arithmetic(self, place: tuple[int, int]) -> bool:
        """Whether an operator stands between the operands of an expression."""
        return any(
            isinstance(node, ast.BinOp)
            and (node.left.end_lineno, node.left.end_col_offset) <= place
            and place < (node.right.lineno, node.right.col_offset)
            for node in self._nodes
        )

    def _exclusions(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case (
                ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.expr() as annotation)
            ):
                yield annotation
            case ast.FunctionDef(name="__repr__" | "__str__"):
                yield node
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"))):
                yield node
            case ast.Raise():
                yield from (part for part in ast.walk(node) if isinstance(part, ast.JoinedStr))
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield node
            case ast.ClassDef(decorator_list=decorators):
                yield from (d for d in decorators if "dataclass" in ast.unparse(d))
            case ast.keyword(arg=str(name)) if name in self._settings["keywords"]:
                yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            yield node.returns
        yield from self._numbers(node)

    def _numbers(self, node: ast.AST) -> Iterator[ast.AST]:
        """Numbers that only say how long something waits, and large ones of module constants."""
        match node:
            case ast.Module(body=body):
                constants = [part for part in body if isinstance(part, ast.Assign)]
                yield from (
                    part for each in constants for part in ast.walk(each) if self._is_large(part)
                )
            case ast.Assign(targets=[target], value=value):
                names = [part.id for part in ast.walk(target) if isinstance(part, ast.Name)]
                yield from [value] if names and all(map(self._is_time, names)) else []
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield from [value] if self._is_time(name) else []
            case ast.keyword(arg=str(name), value=ast.Constant()) if self._is_time(name):
                yield node
            case ast.arguments(args=args, defaults=defaults, kwonlyargs=named, kw_defaults=others):
                pairs = [
                    *zip(args[::-1], defaults[::-1], strict=False),
                    *zip(named, others, strict=True),
                ]
                yield from (value for arg, value in pairs if value and self._is_time(arg.arg))

    def _is_large(self, part: ast.AST) -> bool:
        number = part.value if isinstance(part, ast.Constant) else None
        return isinstance(number, int) and number >= self._settings["large"]

    def _is_time(self, name: str) -> bool:
        return re.search(self._settings["times"], name) is not None


def _contains(node: ast.AST, place: tuple[int, int]) -> bool:
    start = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    end = (getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0))
    return start <= place < end


def _rank(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def choose(
    items: list[WorkItem], modules: dict[Path, Module], settings: Settings
) -> list[WorkItem]:
    """One mutant each of `size` lines: the same ones for the same seed and lines."""
    seed = settings["seed"]
    lines = defaultdict(list)
    for item in items:
        mutation = item.mutations[0]
        module = modules[mutation.module_path]
        if module.allows(mutation):
            line = module.lines[mutation.start_pos[0] - 1]
            text, column = line.strip(), mutation.start_pos[1] - len(line) + len(line.lstrip())
            key = _rank(seed, mutation.definition_name, text)
            lines[key].append((_rank(seed, text, mutation.operator_name, column), item))
    print(f"{len(items)} mutants in all; a test should notice those of {len(lines)} lines")
    chosen: list[WorkItem] = []
    for key in sorted(lines):
        ranked = (item for _, item in sorted(lines[key], key=lambda pair: pair[0]))
        chosen += islice((item for item in ranked if _compiles(item.mutations[0], modules)), 1)
        if len(chosen) == settings["size"]:
            break
    return chosen


def _compiles(mutation: MutationSpec, modules: dict[Path, Module]) -> bool:
    """Whether the mutant is a program: any test notices one that is none."""
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    source = "\n".join(modules[mutation.module_path].lines) + "\n"
    try:
        compile(mutate_code(source, operator, mutation.occurrence), "mutant", "exec")
    except SyntaxError:
        return False
    return True


def reduce(session: WorkDB, root: Path, settings: Settings) -> None:
    """Leave only the sample in `session`, whose paths are relative to `root`."""
    items = list(session.work_items)
    paths = {item.mutations[0].module_path for item in items}
    modules = {path: Module((root / path).read_text(), settings) for path in paths}
    chosen = choose(items, modules, settings)
    session.clear()
    session.add_work_items(chosen)


def main() -> None:
    config, path = sys.argv[1:]
    settings = tomllib.loads(Path(config).read_text())["cosmic-ray"]["filters"]["sample"]
    with use_db(path, WorkDB.Mode.open) as session:
        reduce(session, Path.cwd(), settings)


if __name__ == "__main__":
    main()
