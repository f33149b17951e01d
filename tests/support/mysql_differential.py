"""The same statements on SQLite's MySQL dialect and on a server: where do the replies differ?

Templates over any table of texts. Slots: `{t}` the table; `{a}`, `{b}` two columns; `{v}`, `{w}` a
cell of each as a literal; `{n}` a number; `{part}` a pattern from within `{v}`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from agentrl.envs.tasks.dbbench.problem import Database, Table

QUERIES = (
    "select * from {t} where {a}={v}",
    "select count(*) from {t} where {a}={n}",
    "select count(*) from {t} where {a}>{n} and {b}<>{w}",
    "select {a} from {t} where {a}<{v}",
    "select {a}, {b} from {t} order by {a} desc, {b} limit 4",
    "select {a} from {t} order by {a}+0 desc, {a}, {b} limit 3",
    "select max({a}), min({b}), sum({a}), avg({a}) from {t}",
    "select round(avg({a}),2), sum(replace({a},',','')) from {t}",
    "select {a}, count(*) from {t} group by {a} order by count(*) desc, {a} limit 5",
    "select {a}, count(*) n, max({b}+0) from {t} group by {a} having n>1 order by n desc, {a}",
    "select count(distinct {a}), count(distinct {a},{b}) from {t}",
    "select distinct {a} from {t} order by 1",
    "select {b} from {t} where {a} like {part}",
    "select count(*) from {t} where {a} not like {part}",
    "select count(*) from {t} where {a} regexp '^[A-M].*[0-9]+'",
    "select concat({a},'-',{b}), upper({b}), length({b}), char_length({b}) from {t} limit 3",
    "select substring_index({a},' ',1), left({b},3), right({b},2), trim({a}) from {t} limit 3",
    "select if({a}>{n},'y','n'), ifnull({a},1), nullif({a},{v}) from {t} limit 4",
    "select cast({a} as signed), cast({a} as unsigned)+1 from {t} limit 4",
    "select cast({a} as decimal(10,2)), count(*)/2 from {t} group by {a} order by {a} limit 2",
    "select {a}*2, {a}-1, {a}/3, -{a}, {a} div 2, {a} % 7 from {t} limit 3",
    "select {b} from {t} where {a} = (select max({a}) from {t})",
    "select {b} from {t} where {a} in ({v},{n})",
    "select {b} from {t} where {a} between {v} and {w}",
    "select {b} from {t} where {a} between 1 and {n}",
    "select {b}, max({a}) from {t}",
    "select group_concat({a} separator ';') from {t}",
    "select group_concat(distinct {a} order by {a} desc) from {t}",
    "select case {a} when {v} then 1 else 0 end from {t} limit 5",
    "select str_to_date({a},'%M %d, %Y'), year({a}) from {t} limit 3",
    "select locate('a',{a}), instr({a},'E') from {t} limit 4",
    "select count(*) from {t} x join {t} y on x.{a}=y.{a} where y.{b}={w}",
    "select {a}, rank() over (order by {b}) r from {t} order by r, {a} limit 4",
    "select {a} from {t} union select {b} from {t} order by 1 limit 5",
    "select greatest({a},{b}), least({a},{b}) from {t} limit 4",
    "select substring_index(substring_index({a},' ',2),' ',-1) x, count(*) from {t} "
    "group by x order by x limit 4",
    "select {a} from {t} having {a} > {n}",
    "select {a} from {t} where {a} > (select avg({a}) from {t})",
    "select count(*) from {t} where {a} in (select {a} from {t} where {b}={w})",
    "describe {t}",
    "show tables",
    "select * from nowhere",
)
CHANGES = (
    "update {t} set {a}={w} where {b}={w}",
    "update {t} set {a}={a}+1",
    "update {t} set {a}={a}*1.5 where {b}>{n}",
    "update {t} set {a}=concat({a},'x'), {b}={a}",
    "update {t} set {a}={n} where {a} like {part}",
    "update {t} set {a}={b}/7",
    "update {t} set {a}=null where {b}={w}",
    "insert into {t} ({a}) values (1.50),('1.50'),(-3),(1e3),(null),(true)",
    "insert into {t} ({a}) select {b} from {t}",
    "insert into {t} set {a}='k', {b}=4",
    "replace into {t} ({a}) values ('q')",
    "delete from {t} where {a}={n}",
    "delete from {t} where {a}={v} or {b} like {part}",
    "truncate table {t}",
)
Open = Callable[[Table], Database]

_DECIMAL = re.compile(r"Decimal\('(-?[\d.]+)'\)")
_DATE = re.compile(r"datetime\.date\((\d+), (\d+), (\d+)\)")
_WHOLE = re.compile(r"(?<![\w'.-])(-?\d+)(?:\.0)?(?=[,)\]])")


@dataclass(frozen=True, slots=True)
class Difference:
    """A disagreement. `kind`: type (same values, other types), value, order or table."""

    kind: str
    sql: str
    server: str
    sqlite: str


def statements(table: Table, random: Random) -> Iterator[str]:
    """Fill every template once with columns and cells of a table, which has rows."""
    for template in (*QUERIES, *CHANGES):
        yield filled(template, table, random)


def filled(template: str, table: Table, random: Random) -> str:
    places = list(range(len(table.columns)))
    left, right = random.sample(places, 2) if len(places) > 1 else (0, 0)
    v, w = random.choice(table.rows)[left], random.choice(table.rows)[right]
    head = re.match(r"\d{1,9}", v)
    return template.format(
        t=_quoted(table.name),
        a=_quoted(table.columns[left]),
        b=_quoted(table.columns[right]),
        v=_literal(v),
        w=_literal(w),
        n=head[0] if head else random.randrange(100),
        part=_literal(f"%{v[1:4].replace('%', '')}%"),
    )


def compare(
    tables: Sequence[Table], random: Random, sqlite: Open, server: Open
) -> tuple[Counter[str], list[Difference]]:
    """Run statements on both databases; return how many agree, and those that do not."""
    counts: Counter[str] = Counter()
    differences: list[Difference] = []
    for table in tables:
        one, other = sqlite(table), server(table)
        try:
            for sql in statements(table, random):
                found = _difference(sql, other, one)
                counts[found.kind if found else "same"] += 1
                if found:
                    differences.append(found)
                if found and found.kind == "table":
                    break
        finally:
            one.close()
            other.close()
    return counts, differences


def _difference(sql: str, server: Database, sqlite: Database) -> Difference | None:
    theirs, ours = server.execute(sql), sqlite.execute(sql)
    kind = kind_of(theirs, ours)
    changes = not sql.startswith(("select", "describe", "show"))
    if changes and server.table_hash() != sqlite.table_hash():
        kind = "table"
    return Difference(kind, sql, theirs, ours) if kind else None


def kind_of(theirs: str, ours: str) -> str:
    """Classify a difference; empty if the replies agree."""
    if theirs == ours:
        return ""
    if parse_reply(theirs) == parse_reply(ours):
        return "type"
    return "order" if sorted(parse_reply(theirs)) == sorted(parse_reply(ours)) else "value"


def parse_reply(reply: str) -> str:
    """Parse a reply and drop the types of its numbers and dates."""
    reply = _DECIMAL.sub(lambda found: repr(float(found[1])), reply)
    reply = _DATE.sub(
        lambda found: "'{:04d}-{:02d}-{:02d}'".format(*map(int, found.groups())), reply
    )
    return _WHOLE.sub(lambda found: f"{found[1]}", reply)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
