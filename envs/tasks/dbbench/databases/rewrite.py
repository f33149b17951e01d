"""A parsed MySQL statement becomes one for SQLite: the same tree, with other nodes.

Every column holds text. MySQL decides by types whether two values compare as texts or as numbers,
so a text that meets a number is cast, and texts that are computed get the collation of columns.
"""

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from agentrl.envs.tasks.dbbench.databases.functions import COLLATION, FUNCTIONS, PREFIX

NATIVE = {"count", "min", "max", "sum", "avg", "coalesce", "ifnull", "abs", "replace", "substring"}
WINDOWS = {"row_number", "rank", "dense_rank", "lag", "lead"}
EXTREMES = {"greatest": "max", "least": "min"}  # of several values; of a column in SQLite, too
KNOWN = {*NATIVE, *WINDOWS, *FUNCTIONS, *EXTREMES, "nullif"}
OTHER_NAMES = {"substr": "substring", "mid": "substring", "ceiling": "ceil"}
AGGREGATES = {"count", "min", "max", "sum", "avg", "group_concat"}
NUMERIC = {"sum", "avg", "abs", "round", "ceil", "floor"}  # of numbers
EXACT = {"count", "length", "char_length", "locate", "instr", "year", "row_number", "rank"}
TEXT = {"concat", "str_to_date", "group_concat"}
MAX_NODES = 1_000  # that assignments of an UPDATE grow to by those before them
MAX_COPIED = 100_000  # nodes of what stands before IN, once for each of its values
_CASTS = {
    "exact": exp.DataType.INTEGER_TYPES | {exp.DType.DECIMAL, exp.DType.YEAR},
    "double": {exp.DType.DOUBLE, exp.DType.FLOAT},
}
_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.Between)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg)
_OPERANDS = ("this", "expression", "low", "high")


class Refused(Exception):
    """Raised with MySQL's error for this statement."""


def rewrite_tree(tree: exp.Expr, tables: frozenset[str]) -> exp.Expr:
    """Rewrite a tree for SQLite, in place. Raises Refused, ValueError."""
    _check(tree, tables)
    for select in list(tree.find_all(exp.Select)):
        _first_rows(select)
    root = exp.Paren(this=_change(tree))  # so that every node of the statement has a parent
    for node in reversed(list(root.walk(bfs=True))[1:]):
        if (rule := _RULES.get(type(node))) and (other := rule(node)) is not node:
            node.replace(other)
    return next(root.iter_expressions())


def function_name(node: exp.Expr | None) -> str:
    """Return the name of a function node, or an empty text."""
    if isinstance(node, exp.GroupConcat):
        return "group_concat"
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    return OTHER_NAMES.get(name, name.removeprefix(PREFIX))


def kind(node: exp.Expr) -> str:
    """Infer the type `text`, `double` or `exact` (a whole number or DECIMAL); cached."""
    if "kind" not in node.meta:
        node.meta["kind"] = _kind(node)
    return str(node.meta["kind"])


def _kind(node: exp.Expr) -> str:
    name, parts = function_name(node), list(node.iter_expressions())
    if isinstance(node, exp.Literal):
        return "text" if node.is_string else "double" if "e" in node.name.lower() else "exact"
    if isinstance(node, (exp.Column, exp.Collate)) or name in TEXT:
        return "text"
    if isinstance(node, (exp.Predicate, exp.Connector, exp.Not)) or name in EXACT:
        return "exact"
    if isinstance(node, exp.Cast):
        return next((each for each, types in _CASTS.items() if node.to.this in types), "text")
    if isinstance(node, exp.Query):
        parts = node.selects[:1]
    elif isinstance(node, (exp.Window, exp.If)):
        parts = parts[:1] if isinstance(node, exp.Window) else parts[1:]
    kinds = {kind(part) for part in parts}
    if kinds <= {"exact"}:
        return "exact"
    numeric = name in NUMERIC or isinstance(node, _ARITHMETIC)
    numeric = numeric or (name in EXTREMES and kinds != {"text"})
    return "double" if numeric or "text" not in kinds else "text"


def call(name: str, *arguments: exp.Expr) -> exp.Expr:
    """Build a call of a function of SQLite, or of ours if the name begins with PREFIX."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def number(node: exp.Expr) -> exp.Expr:
    """Cast a text to the number at its head."""
    return double(node) if kind(node) == "text" else node


def double(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=exp.Add(this=node, expression=exp.Literal.number("0.0")))


def collated(node: exp.Expr) -> exp.Expr:
    if isinstance(node, (exp.Column, exp.Collate)) or kind(node) != "text":
        return node
    return exp.Collate(this=exp.Paren(this=node), expression=exp.var(COLLATION))


def _in(node: exp.Expr) -> exp.Expr:
    if not node.expressions or isinstance(node.this, exp.Tuple):
        return node
    if sum(1 for _ in node.this.walk()) * len(node.expressions) > MAX_COPIED:
        raise ValueError("too many values for what stands before IN")
    return _any([equal(node.this.copy(), value) for value in node.expressions])


def _any(conditions: Sequence[exp.Expr]) -> exp.Expr:
    """Join conditions by OR, halved again and again: SQLite bounds the depth of an expression."""
    if len(conditions) == 1:
        return exp.Paren(this=conditions[0])
    half = len(conditions) // 2
    either = exp.Or(this=_any(conditions[:half]), expression=_any(conditions[half:]))
    return exp.Paren(this=either)


def _case(node: exp.Expr) -> exp.Expr:
    for branch in node.args["ifs"] if node.this else ():
        branch.set("this", equal(node.this.copy(), branch.this))
    node.set("this", None)
    return node


def equal(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return _compared(exp.EQ(this=left, expression=right))


def _compared(node: exp.Expr) -> exp.Expr:
    sides = {name: node.args[name] for name in _OPERANDS if node.args.get(name)}
    texts = all(kind(side) == "text" for side in sides.values())
    if not isinstance(node.parent, exp.Update) or node.arg_key != "expressions":
        for name, side in sides.items():
            node.set(name, collated(side) if texts else number(side))
    return node


def _arithmetic(node: exp.Expr) -> exp.Expr:
    exact = kind(node) == "exact"
    for name, operand in zip(_OPERANDS, list(node.iter_expressions()), strict=False):
        node.set(name, number(operand))
    if isinstance(node, exp.Div):
        node.set("this", double(node.this))
        node.set("typed", True)  # so that sqlglot adds no cast
    if isinstance(node, exp.Neg) and not exact:
        return exp.Paren(this=exp.Sub(this=exp.Literal.number(0), expression=node.this))
    if isinstance(node, exp.Mod) and not exact:
        return call(PREFIX + "mod", node.this, node.expression)
    return node


def _function(node: exp.Expr) -> exp.Expr:
    name, arguments = function_name(node), list(node.expressions)
    if node.name.startswith(PREFIX):
        return node
    if name not in KNOWN:
        raise Refused(f"1305 (42000): FUNCTION dbbench.{node.name} does not exist")
    if name == "nullif":
        same = equal(arguments[0].copy(), arguments[1])
        return exp.If(this=same, true=exp.null(), false=arguments[0])
    distinct = arguments[0] if arguments and isinstance(arguments[0], exp.Distinct) else None
    values = distinct.expressions if distinct else arguments
    if name in NUMERIC or name in EXTREMES:
        values = [(collated if kind(node) == "text" else number)(value) for value in values]
    exact = all(kind(value) == "exact" for value in values)
    if distinct:
        single = values[0] if len(values) == 1 else call(PREFIX + "tuple", *values)
        distinct.set("expressions", [collated(single)])
        values = [distinct]
    ours = name in FUNCTIONS and not (name == "round" and exact)
    return collated(call(PREFIX + name if ours else EXTREMES.get(name, name), *values))


def _cast(node: exp.Expr) -> exp.Expr:
    """Rewrite CAST and CONVERT."""
    to = node.args["to"]
    sizes = [part.this for part in to.expressions]
    if to.this == exp.DType.DECIMAL:
        return call("round", number(node.this), *(sizes[1:] or [exp.Literal.number(0)]))
    if kind(node) == "text":
        return call(PREFIX + ("left" if sizes else "text"), node.this, *sizes[:1])
    if kind(node) == "double":
        return double(node.this)
    whole = node.this if kind(node.this) == "text" else call("round", node.this)
    return exp.Cast(this=whole, to=exp.DataType(this=exp.DType.BIGINT))


def _group_concat(node: exp.Expr) -> exp.Expr:
    inner, by, descending = node.this, exp.null(), False
    if isinstance(inner, exp.Order):
        by, descending = inner.expressions[0].this, inner.expressions[0].args.get("desc")
        inner = inner.this
    distinct = isinstance(inner, exp.Distinct)
    flags = (exp.Literal.number(int(bool(flag))) for flag in (distinct, descending))
    values = inner.expressions if distinct else [inner]
    separator = node.args.get("separator") or exp.Literal.string(",")
    return call(PREFIX + "group_concat", separator, *flags, by, *values)


def _check(tree: exp.Expr, tables: frozenset[str]) -> None:
    """Raise Refused for what MySQL refuses and SQLite would take."""
    folded = {name.lower() for name in tables}
    defined = tables | {cte.alias for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        table.set("db", None if table.db == "dbbench" else table.args.get("db"))
        if table.name.lower() in folded and table.name not in defined:
            raise Refused(f"1146 (42S02): Table 'dbbench.{table.name}' doesn't exist")
    for query in tree.find_all(exp.Subquery):
        if isinstance(query.parent, (exp.From, exp.Join)) and not query.alias:
            raise Refused("1248 (42000): Every derived table must have its own alias")


def _is_aggregate(node: exp.Expr) -> bool:
    return function_name(node) in AGGREGATES and not isinstance(node.parent, exp.Window)


def _first_rows(select: exp.Select) -> None:
    """Give columns beside an aggregate the values of the group's first row."""
    group, having, shown = select.args.get("group"), select.args.get("having"), select.expressions
    aliases = {each.alias.lower(): each.this for each in shown if isinstance(each, exp.Alias)}
    named = aliases | {place: each.unalias() for place, each in enumerate(shown, 1)}
    for term in group.expressions if group else ():
        if other := named.get(int(term.name) if term.is_int else term.name.lower()):
            term.replace(other.copy())
    parts = [*shown, *(part for part in (having, select.args.get("order")) if part)]
    own = [node for part in parts for node in part.walk(prune=_is_closed)]
    if not group and not any(map(_is_aggregate, own)):
        if having:
            select.where(having.pop().this, copy=False)
        return
    for node in own:
        projected = node.find_ancestor(exp.Having, exp.Order, exp.Select) is select
        alias = not projected and node.name.lower() in aliases
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star) and not alias:
            first = collated(call(PREFIX + "first", node.copy()))
            whole = node.parent is select
            node.replace(exp.alias_(first, node.name, quoted=True, copy=False) if whole else first)


def _is_closed(node: exp.Expr) -> bool:
    return isinstance(node, (exp.Query, exp.Window)) or _is_aggregate(node)


def _change(tree: exp.Expr) -> exp.Expr:
    if isinstance(tree, exp.TruncateTable):
        return exp.Delete(this=tree.expressions[0])
    if isinstance(tree, exp.Insert):
        source = tree.expression
        for row in source.expressions if isinstance(source, exp.Values) else [source]:
            if isinstance(row, (exp.Tuple, exp.Select)):
                row.set("expressions", [_to_stored_text(value) for value in row.expressions])
    elif isinstance(tree, exp.Update):
        _assign(tree)
    return tree


def _assign(update: exp.Update) -> None:
    """Make assignments take effect from left to right. Raises ValueError."""
    before = dict[str, exp.Expr]()
    for assignment in update.expressions:
        for column in list(assignment.expression.find_all(exp.Column)):
            if assigned := before.get(column.name.lower()):
                column.replace(exp.Paren(this=assigned.copy()))
        before[assignment.this.name.lower()] = assignment.expression.copy()
        if sum(1 for _ in assignment.walk()) > MAX_NODES:
            raise ValueError("assignments of assignments")
        assignment.this.set("table", None)
        assignment.set("expression", _to_stored_text(assignment.expression))


def _to_stored_text(value: exp.Expr) -> exp.Expr:
    """Convert a value as a text column stores it."""
    if isinstance(value, exp.Literal) and not value.is_string and "e" not in value.name.lower():
        return exp.Literal.string(str(int(value.name)) if value.is_int else value.name)
    plain = isinstance(value, (exp.Null, exp.Star)) or kind(value) == "text"
    return value if plain else call("text", value)


_RULES: Mapping[type[exp.Expr], Callable[[exp.Expr], exp.Expr]] = {
    **dict.fromkeys(_COMPARED, _compared),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **{exp.In: _in, exp.Case: _case, exp.Cast: _cast},
    **{exp.Anonymous: _function, exp.GroupConcat: _group_concat},
}
