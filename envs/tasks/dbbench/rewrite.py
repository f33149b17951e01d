"""A parsed MySQL statement becomes one for SQLite: the same tree, with other nodes.

Operators and functions become calls of `my_…`, which decide by the values they meet, as MySQL does.
Clauses that SQLite lacks or means otherwise are put differently.
"""

from collections.abc import Callable, Mapping

from sqlglot import exp

from agentrl.envs.tasks.dbbench import clauses, functions
from agentrl.envs.tasks.dbbench.clauses import Refused, call, collated
from agentrl.envs.tasks.dbbench.matching import matching

NATIVE = frozenset(
    {"count", "min", "max", "row_number", "rank", "dense_rank", "percent_rank", "cume_dist"}
    | {"ntile", "lag", "lead", "first_value", "last_value", "nth_value"}
)
KNOWN = frozenset(
    {*functions.FUNCTIONS, *functions.AGGREGATES, *functions.CLOCK, *matching(lambda: None)}
)
_WHOLE = frozenset(
    {"count", *(functions.PREFIX + name for name in ("decimal", "signed", "unsigned", "length"))}
)
_WINDOWED = frozenset({"sum", "avg"})  # as windows these are SQLite's own
_BINARY: Mapping[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.NullSafeEQ: "same",
    exp.Like: "like",
    exp.RegexpLike: "regexp",
    exp.Add: "add",
    exp.Sub: "sub",
    exp.Mul: "mul",
    exp.Div: "divide",
    exp.IntDiv: "div",
    exp.Mod: "mod",
    exp.Xor: "xor",
}
_CASTS = (
    ("unsigned", exp.DataType.UNSIGNED_INTEGER_TYPES),
    ("signed", {*exp.DataType.SIGNED_INTEGER_TYPES, exp.DType.YEAR}),
    ("double", {exp.DType.DOUBLE, exp.DType.FLOAT}),
    ("date", {exp.DType.DATE}),
)


def rewritten(tree: exp.Expr, tables: frozenset[str]) -> exp.Expr:
    """The tree for SQLite; the one given is used up. Raises Refused."""
    clauses.check(tree, tables)
    tree = clauses.rearranged(tree)
    for node in reversed(list(tree.walk(bfs=True))):
        rule = _RULES.get(type(node))
        if rule is None:
            continue
        other = rule(node)
        if other is not node:
            if node is tree:
                tree = other
            else:
                node.replace(other)
    return tree


def _binary(node: exp.Expr) -> exp.Expr:
    left, right = node.this, node.expression
    assigns = isinstance(node.parent, exp.Update) and node.arg_key == "expressions"
    whole = (exp.Tuple, exp.Any, exp.All, exp.Interval)
    if assigns or isinstance(left, whole) or isinstance(right, whole):
        return node
    applied = call(_BINARY[type(node)], left, right)
    # sqlglot keeps the NOT of NOT LIKE in the node itself.
    return exp.Paren(this=exp.Not(this=applied)) if node.args.get("negate") else applied


def _escape(node: exp.Expr) -> exp.Expr:
    """`LIKE … ESCAPE …`, whose LIKE is a call already."""
    inner: exp.Expr = node.this
    applied = inner.find(exp.Anonymous)
    if applied is None:
        return node
    applied.append("expressions", node.expression)
    return inner


def _in(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Tuple):
        return node
    if node.args.get("query"):
        node.set("this", collated(node.this))
        return node
    return call("in", node.this, *node.expressions)


def _between(node: exp.Expr) -> exp.Expr:
    return call("between", node.this, node.args["low"], node.args["high"])


def _neg(node: exp.Expr) -> exp.Expr:
    plain = isinstance(node.this, exp.Literal) and not node.this.is_string
    return node if plain else call("neg", node.this)


def _case(node: exp.Expr) -> exp.Expr:
    if node.this is None:
        return node
    for branch in node.args["ifs"]:
        branch.set("this", call("eq", node.this.copy(), branch.this))
    node.set("this", None)
    return node


def _cast(node: exp.Expr) -> exp.Expr:
    kind = node.args["to"]
    sizes = [part.this for part in kind.expressions]
    if kind.this == exp.DType.DECIMAL:
        return call("decimal", node.this, sizes[1] if len(sizes) > 1 else exp.Literal.number(0))
    for name, kinds in _CASTS:
        if kind.this in kinds:
            return call(name, node.this)
    return call("char", node.this, *sizes[:1])


def _function(node: exp.Expr) -> exp.Expr:
    name = str(node.this).lower()
    if name.startswith(functions.PREFIX) or name in ("values", "pragma_table_info"):
        return node
    windowed = isinstance(node.parent, exp.Window) and node.arg_key == "this"
    if name in NATIVE or (windowed and name in _WINDOWED):
        return _aggregate(node, name)
    if name not in KNOWN:
        raise Refused("1305 (42000)", f"FUNCTION dbbench.{node.this} does not exist")
    if name == "round" and node.expressions and _exact(node.expressions[0]):
        name = "round_exact"
    if name == "timestampdiff":
        node.expressions[0].replace(exp.Literal.string(node.expressions[0].name))
    if name in ("sum", "avg") and isinstance(node.expressions[0], exp.Distinct):
        values = node.expressions[0].expressions  # numbers differ, not the texts they stand in
        node.expressions[0].set("expressions", [call("number", *values)])
    return call(name, *node.expressions)


def _exact(node: exp.Expr) -> bool:
    """Is the value a whole number or a DECIMAL? What is read from a text is a double."""
    if isinstance(node, exp.Literal):
        return not node.is_string
    if isinstance(node, exp.Anonymous) and str(node.this).lower() in _WHOLE:
        return True
    parts = [child for child in node.iter_expressions() if not isinstance(child, exp.Identifier)]
    return not isinstance(node, (exp.Column, exp.Query)) and all(map(_exact, parts))


def _aggregate(node: exp.Expr, name: str) -> exp.Expr:
    """Texts differ, and have an extreme, by collation; several values count as one."""
    if name not in ("count", "min", "max") or not node.expressions:
        return node
    inner = node.expressions[0]
    if isinstance(inner, exp.Distinct):
        values = inner.expressions
        single = values[0] if len(values) == 1 else call("tuple", *values)
        inner.set("expressions", [collated(single)])
    elif name != "count":
        inner.replace(collated(inner))
    return node


def _group_concat(node: exp.Expr) -> exp.Expr:
    inner, order = node.this, list[exp.Expr]()
    if isinstance(inner, exp.Order):
        for term in inner.expressions:
            key = term.this.this if isinstance(term.this, exp.Collate) else term.this
            order += [key, exp.Literal.number(-1 if term.args.get("desc") else 1)]
        inner = inner.this
    distinct = isinstance(inner, exp.Distinct)
    if distinct:
        values = inner.expressions
        inner = values[0] if len(values) == 1 else call("concat", *values)
    separator = node.args.get("separator") or exp.Literal.string(",")
    return call("group_concat", separator, exp.Literal.number(int(distinct)), inner, *order)


def _trim(node: exp.Expr) -> exp.Expr:
    mark = node.expression or exp.Literal.string(" ")
    return call("trim", node.this, mark, exp.Literal.string(node.args.get("position") or "BOTH"))


def _collate(node: exp.Expr) -> exp.Expr:
    if node.expression.name.lower() != functions.COLLATION:
        binary = node.expression.name.lower().endswith("_bin")
        node.set("expression", exp.var("BINARY" if binary else functions.COLLATION))
    return node


def _sorted(node: exp.Expr) -> exp.Expr:
    """A place or a text's order is by collation."""
    if not isinstance(node.this, (exp.Literal, exp.Collate)):
        node.set("this", collated(node.this))
    return node


def _group(node: exp.Expr) -> exp.Expr:
    plain = (exp.Literal, exp.Collate)
    node.set(
        "expressions",
        [each if isinstance(each, plain) else collated(each) for each in node.expressions],
    )
    return node


def _call(name: str, *arguments: str) -> Callable[[exp.Expr], exp.Expr]:
    def applied(node: exp.Expr) -> exp.Expr:
        return call(name, *(node.args[each] for each in arguments if node.args.get(each)))

    return applied


_RULES: Mapping[type[exp.Expr], Callable[[exp.Expr], exp.Expr]] = {
    **dict.fromkeys(_BINARY, _binary),
    exp.Escape: _escape,
    exp.In: _in,
    exp.Between: _between,
    exp.Neg: _neg,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.Anonymous: _function,
    exp.GroupConcat: _group_concat,
    exp.Trim: _trim,
    exp.Collate: _collate,
    exp.Ordered: _sorted,
    exp.Group: _group,
    exp.Ceil: _call("ceil", "this"),
    exp.Floor: _call("floor", "this"),
    exp.Substring: _call("substring", "this", "start", "length"),
    exp.StrPosition: _call("locate", "substr", "this", "position"),
    exp.Concat: lambda node: call("concat", *node.expressions),
    exp.Extract: lambda node: call(node.this.name.lower(), node.expression),
}
