"""Statements about the database itself, as queries of SQLite's own catalogue."""

import re

_NAME = r"(?:`((?:[^`]|``)+)`|(\w+))"
_SHOW_TABLES = re.compile(r"\s*show\s+(?:full\s+)?tables\b.*", re.IGNORECASE | re.DOTALL)
_SHOW_DATABASES = re.compile(r"\s*show\s+(?:databases|schemas)\b.*", re.IGNORECASE | re.DOTALL)
_COLUMNS = re.compile(
    rf"\s*(?:show\s+(full\s+)?(?:columns|fields)\s+(?:from|in)|describe|desc|explain)\s+"
    rf"{_NAME}\s*;?\s*",
    re.IGNORECASE,
)
_CREATE = re.compile(rf"\s*show\s+create\s+table\s+{_NAME}\s*;?\s*", re.IGNORECASE)
_REPLACE = re.compile(r"\s*replace\s+(?=into\b|`|\w+\s*(?:\(|values?\b))", re.IGNORECASE)


def plain(sql: str) -> str:
    """REPLACE is INSERT: the tables have no keys."""
    return _REPLACE.sub("INSERT ", sql, count=1) if _REPLACE.match(sql) else sql


def emulated(sql: str) -> tuple[str, str] | None:
    """The answer of SHOW or DESCRIBE as a query; the table that is missing where it is empty."""
    if _SHOW_TABLES.fullmatch(sql):
        return "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name", ""
    if _SHOW_DATABASES.fullmatch(sql):
        return "SELECT 'dbbench' AS `Database`", ""
    if found := _COLUMNS.fullmatch(sql):
        table = (found[2] or found[3]).replace("``", "`")
        full = ", NULL, 'YES', '', NULL, '', '', ''" if found[1] else ", 'YES', '', NULL, ''"
        source = f"pragma_table_info({_literal(table)})"
        return f"SELECT name, lower(type){full} FROM {source}", table  # noqa: S608
    if found := _CREATE.fullmatch(sql):
        table = (found[1] or found[2]).replace("``", "`")
        return _created(table), table
    return None


def _created(table: str) -> str:
    lines = (
        "group_concat('  `' || replace(name, '`', '``') || '` ' || lower(type), ',' || char(10))"
    )
    head = _literal(f"CREATE TABLE `{table.replace('`', '``')}` (\n")
    return (
        f"SELECT {_literal(table)}, {head} || {lines} || char(10) || ')' "  # noqa: S608
        f"FROM pragma_table_info({_literal(table)}) HAVING count(*) > 0"
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
