"""Clauses that SQLite lacks or means otherwise, and statements that MySQL refuses."""

from collections.abc import Iterator

from sqlglot import exp

from agentrl.envs.tasks.dbbench import functions

AGGREGATES = frozenset({*functions.AGGREGATES, "count", "min", "max"})
SCHEMA = "information_schema"
MAX_NODES = 5_000  # that assignments of an UPDATE grow to by those before them
_TABLES = """SELECT 'def' AS `TABLE_CATALOG`, 'dbbench' AS `TABLE_SCHEMA`, name AS `TABLE_NAME`,
 CASE type WHEN 'view' THEN 'VIEW' ELSE 'BASE TABLE' END AS `TABLE_TYPE`
 FROM sqlite_master WHERE type IN ('table', 'view')"""
_COLUMNS = """SELECT 'def' AS `TABLE_CATALOG`, 'dbbench' AS `TABLE_SCHEMA`, m.name AS `TABLE_NAME`,
 p.name AS `COLUMN_NAME`, p.cid + 1 AS `ORDINAL_POSITION`, 'YES' AS `IS_NULLABLE`,
 lower(p.type) AS `DATA_TYPE`, lower(p.type) AS `COLUMN_TYPE`, '' AS `COLUMN_KEY`
 FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS p WHERE m.type IN ('table', 'view')"""


class Refused(Exception):
    """What MySQL answers to this statement."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")


def call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=functions.PREFIX + name, expressions=list(arguments))


def collated(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, (exp.Column, exp.Anonymous, exp.Paren, exp.Literal)):
        node = exp.Paren(this=node)
    return exp.Collate(this=node, expression=exp.var(functions.COLLATION))


def check(tree: exp.Expr, tables: frozenset[str]) -> None:
    """Raises Refused for what MySQL refuses and SQLite would take."""
    folded = {name.lower() for name in tables}
    defined = {cte.alias for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        wrong_case = table.name.lower() in folded and table.name not in tables | defined
        if wrong_case and not isinstance(tree, exp.Create):
            raise Refused("1146 (42S02)", f"Table 'dbbench.{table.name}' doesn't exist")
    for query in tree.find_all(exp.Subquery):
        if isinstance(query.parent, (exp.From, exp.Join)) and not query.alias:
            raise Refused("1248 (42000)", "Every derived table must have its own alias")
        if isinstance(query.parent, (exp.From, exp.Join)):
            _check_names(query)
    for inside in tree.find_all(exp.In):
        inner = inside.args.get("query")
        if inner and inner.unnest().args.get("limit"):
            version = "This version of MySQL doesn't yet support"
            raise Refused("1235 (42000)", f"{version} 'LIMIT & IN/ALL/ANY/SOME subquery'")


def _check_names(query: exp.Subquery) -> None:
    seen: set[str] = set()
    inner = query.unnest()
    for name in inner.named_selects if isinstance(inner, exp.Query) else ():
        if name != "*" and name.lower() in seen:
            raise Refused("1060 (42S21)", f"Duplicate column name '{name}'")
        seen.add(name.lower())


def rearranged(tree: exp.Expr) -> exp.Expr:
    """The statement's clauses as SQLite has them."""
    for table in list(tree.find_all(exp.Table)):
        _place(table)
    for select in list(tree.find_all(exp.Select)):
        _select(select)
    if isinstance(tree, exp.Update):
        _update(tree)
    elif isinstance(tree, exp.Delete):
        _limited(tree)
    elif isinstance(tree, exp.Insert):
        _insert(tree)
    elif isinstance(tree, exp.TruncateTable):
        return exp.Delete(this=tree.expressions[0])
    return tree


def _place(table: exp.Table) -> None:
    if table.db.lower() == "dbbench":
        table.set("db", None)
    elif table.db.lower() == SCHEMA and table.name.lower() in ("tables", "columns"):
        text = _TABLES if table.name.lower() == "tables" else _COLUMNS
        alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name))
        query = exp.Subquery(this=exp.maybe_parse(text, dialect="sqlite"), alias=alias)
        table.replace(query)
    elif table.name.lower() == "dual" and isinstance(table.parent, exp.From):
        table.parent.pop()


def _select(select: exp.Select) -> None:
    _places(select)
    aggregates = any(_aggregate(node) for part in _parts(select) for node in own(part))
    group, having = select.args.get("group"), select.args.get("having")
    if group or aggregates:
        _first_rows(select)
    elif having:
        having.pop()
        select.where(having.this, copy=False)
    if select.args.get("distinct"):
        for projection in select.expressions:
            inner = projection.this if isinstance(projection, exp.Alias) else projection
            if not isinstance(inner, (exp.Column, exp.Star)):
                inner.replace(collated(inner.copy()))


def _places(select: exp.Select) -> None:
    """ORDER BY a place orders by what stands there, by collation."""
    order = select.args.get("order")
    for term in order.expressions if order and not select.is_star else ():
        place = (
            int(term.this.this) if isinstance(term.this, exp.Literal) and term.this.is_int else 0
        )
        if 1 <= place <= len(select.expressions):
            term.set("this", select.expressions[place - 1].unalias().copy())


def _parts(select: exp.Select) -> list[exp.Expr]:
    having, order = select.args.get("having"), select.args.get("order")
    return [*select.expressions, *([having] if having else []), *([order] if order else [])]


def own(node: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of this query, not of those inside it."""
    return node.walk(prune=lambda each: isinstance(each, exp.Query))


def _aggregate(node: exp.Expr) -> bool:
    if isinstance(node.parent, exp.Window) and node.arg_key == "this":
        return False
    named = isinstance(node, exp.Anonymous) and str(node.this).lower() in AGGREGATES
    return named or isinstance(node, exp.GroupConcat)


def _first_rows(select: exp.Select) -> None:
    """Columns that are not aggregated have the values of the group's first row."""
    group = select.args.get("group")
    grouped = list(group.expressions) if group else []
    places = {int(each.this) for each in grouped if isinstance(each, exp.Literal) and each.is_int}
    names = {each.name.lower() for each in grouped if isinstance(each, exp.Column)}
    aliases = {each.alias.lower() for each in select.expressions if each.alias}
    for place, part in enumerate(_parts(select), 1):
        projection = place <= len(select.expressions)
        if projection and (place in places or part.alias.lower() in names):
            continue  # grouped by what stands here, which thus cannot be aggregated
        hidden = set() if projection else aliases
        for column in list(own(part)):
            if isinstance(column, exp.Column) and not _settled(column, part, hidden):
                first: exp.Expr = call("first", column.copy())
                named = exp.alias_(first, column.name, quoted=True) if column is part else first
                column.replace(named)


def _settled(column: exp.Column, part: exp.Expr, hidden: set[str]) -> bool:
    """Is the column part of something aggregated, an alias, or a star?"""
    if isinstance(column.this, exp.Star) or (not column.table and column.name.lower() in hidden):
        return True
    node: exp.Expr | None = column
    while node is not None:
        if _aggregate(node) or isinstance(node, exp.Window):
            return True
        if node is part:
            return False
        node = node.parent
    return False


def _update(update: exp.Update) -> None:
    """Assignments take effect from left to right; what is stored is text. Raises ValueError."""
    assigned, nodes = dict[str, exp.Expr](), 0
    for assignment in update.expressions:
        if not isinstance(assignment.this, exp.Column):
            continue
        for column in list(assignment.expression.find_all(exp.Column)):
            if (before := assigned.get(column.name.lower())) is not None:
                nodes += sum(1 for _ in before.walk())
                if nodes > MAX_NODES:
                    raise ValueError("assignments of assignments")
                column.replace(exp.Paren(this=before.copy()))
        assigned[assignment.this.name.lower()] = assignment.expression.copy()
        assignment.this.set("table", None)
        assignment.set("expression", stored(assignment.expression))
    _limited(update)


def _limited(change: exp.Expr) -> None:
    """A change of so many rows becomes one of rows that a query names."""
    limit, order, where = (change.args.get(name) for name in ("limit", "order", "where"))
    if limit is None and order is None:
        return
    rows = exp.select("rowid").from_(exp.to_table(change.this.name, quoted=True))
    rows.args["from_" if "from_" in rows.args else "from"].this.this.set("quoted", True)
    for name, clause in (("where", where), ("order", order), ("limit", limit)):
        if clause is not None:
            rows.set(name, clause.pop())
    chosen = exp.In(this=exp.column("rowid"), query=exp.Subquery(this=rows))
    change.set("where", exp.Where(this=chosen))


def _insert(insert: exp.Insert) -> None:
    insert.set("conflict", None)  # the tables have no keys
    source = insert.expression
    if isinstance(source, exp.Values):
        for row in source.expressions:
            if isinstance(row, exp.Tuple):
                row.set("expressions", [stored(value) for value in row.expressions])
    elif isinstance(source, exp.Select):
        source.set("expressions", [stored(value) for value in source.expressions])


def stored(value: exp.Expr) -> exp.Expr:
    """A value as a text column holds it."""
    if isinstance(value, exp.Literal):
        if value.is_string:
            return value
        if "e" in value.this.lower():
            return call("text", value)
        return exp.Literal.string(str(int(value.this)) if value.is_int else value.this)
    if isinstance(value, exp.Column):
        return exp.Null() if value.name.upper() == "DEFAULT" else value
    return value if isinstance(value, (exp.Null, exp.Star)) else call("text", value)
