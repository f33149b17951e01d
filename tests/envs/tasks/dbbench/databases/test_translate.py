"""SQLite as MySQL: the replies that MariaDB 10.11 gave to the same statements."""

import itertools
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.tasks.dbbench.databases.sqlite import TIMED_OUT, SqliteDatabase
from agentrl.envs.tasks.dbbench.databases.translate import MAX_PARSED, MysqlDatabase, translate
from agentrl.envs.tasks.dbbench.problem import Table

TABLE = Table("Staff", ["name", "pay", "The City"], [])
ROWS = [["Kim", "52", "Oslo"], ["Zoë", "9", "oslo"], ["bob", "1,200", "Rome"], ["eva", "", "Lima"]]
TABLE.rows.extend(ROWS)
MANY = ", ".join(f"Staff s{number}" for number in range(20))
WORDS = """
select from where Staff name pay `The City` 'Kim' 9 1.5 null and or not in like regexp between ( )
, * = < > <=> + - / % group by order having limit count sum max concat if case when then else end
insert into values update set delete as distinct join on union cast signed is exists over rank ; "
` @x :p ? show tables describe
"""
DESCRIBED = (
    "[('name', 'text', 'YES', '', None, ''), ('pay', 'text', 'YES', '', None, ''), "
    "('The City', 'text', 'YES', '', None, '')]"
)


def opened(
    *tables: Table, timeout_s: float = 1.0, clock: Callable[[], float] = time.monotonic
) -> MysqlDatabase:
    chosen = tables or (TABLE,)
    inner = SqliteDatabase(chosen, timeout_s=timeout_s, mysql=True, clock=clock)
    return MysqlDatabase(inner, chosen)


@pytest.fixture
def database() -> Iterator[MysqlDatabase]:
    made = opened()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("sql", "reply"),
    [
        ("select name from Staff where name='KIM'", "[('Kim',)]"),
        ("select name from Staff where name='zoe'", "[('Zoë',)]"),
        ("select name from Staff where pay > 9", "[('Kim',)]"),
        ("select name from Staff where pay > '9'", "[]"),
        ("select name from Staff where pay = 0", "[('eva',)]"),
        (
            "select name from Staff where pay in (9, 52) and `The City` in ('OSLO')",
            "[('Kim',), ('Zoë',)]",
        ),
        ("select name from Staff where pay between 1 and 10", "[('Zoë',), ('bob',)]"),
        ("select name from Staff where name like '_O%'", "[('Zoë',), ('bob',)]"),
        ("select name from Staff where name not like '%o%'", "[('Kim',), ('eva',)]"),
        ("select name from Staff where name regexp '^[a-k]'", "[('Kim',), ('bob',), ('eva',)]"),
        ('select name from Staff where name = "kim" && pay', "[('Kim',)]"),
        ("select name from Staff order by name", "[('bob',), ('eva',), ('Kim',), ('Zoë',)]"),
        ("select name from Staff order by pay+0 desc, name limit 1", "[('Kim',)]"),
        ("select name from Staff order by pay desc limit 1", "[('Zoë',)]"),
        ("select max(pay), min(name), sum(pay), avg(pay) from Staff", "[('9', 'bob', 62.0, 15.5)]"),
        ("select sum(replace(pay,',','')) from Staff", "[(1261.0,)]"),
        (
            "select `The City`, count(*) c from Staff group by `The City` order by c desc, 1",
            "[('Oslo', 2), ('Lima', 1), ('Rome', 1)]",
        ),
        ("select count(distinct `The City`) from Staff", "[(3,)]"),
        ("select name, max(pay) from Staff", "[('Kim', '9')]"),
        ("select `The City` from Staff group by `The City` order by 1 desc limit 1", "[('Rome',)]"),
        (
            "select x.name from (select name, max(pay) p from Staff group by 1) x limit 1",
            "[('bob',)]",
        ),
        ("select upper(name) u, count(*) from Staff group by u order by u limit 1", "[('BOB', 1)]"),
        ("select name from Staff having name > 'l'", "[('Zoë',)]"),
        ("select 1+1, '1'+1, 5 div 2, 5 % 2, -'3', 1 || 0", "[(2, 2.0, 2, 1, -3.0, 1)]"),
        ("select 'a' 'b', 'it\\'s', 'x\\ny'", "[('ab', \"it's\", 'x\\ny')]"),
        ("select concat('a', 1, 2.5), concat('a', null)", "[('a12.5', None)]"),
        (
            "select substring_index('a-b-c','-',-1), left('abc',2), mid('abc',2)",
            "[('c', 'ab', 'bc')]",
        ),
        ("select if(1>2,'a','b'), ifnull(null,'x'), nullif('a','A')", "[('b', 'x', None)]"),
        ("select cast('12abc' as signed), cast('12.7' as signed)", "[(12, 12)]"),
        ("select str_to_date('August 15, 2000','%M %d, %Y')", "[('2000-08-15',)]"),
        ("select length('é'), char_length('é'), instr('aXb','x')", "[(2, 1, 2)]"),
        ("select case 'a' when 'A' then 1 end, 'a' = 'a ', null <=> null", "[(1, 0, 1)]"),
        (
            "select group_concat(name order by name desc separator '|') from Staff",
            "[('Zoë|Kim|eva|bob',)]",
        ),
        ("show tables", "[('Staff',)]"),
        ("describe Staff", DESCRIBED),
        ("select name from Staff limit 1,2", "[('Zoë',), ('bob',)]"),
    ],
)
def test_a_query_is_answered_as_by_mysql(database: MysqlDatabase, sql: str, reply: str) -> None:
    assert database.execute(sql) == reply


def test_decimals_show_as_plain_numbers(database: MysqlDatabase) -> None:
    """MariaDB: Decimal('2.68'), 2.0, Decimal('50')."""
    sql = "select round(2.675,2), round('2.5'), round(count(*)*100/8,0) from Staff"
    assert database.execute(sql) == "[(2.68, 2.0, 50.0)]"


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("update T set a=a+1", "[('2', 'x'), ('1', 'y')]"),
        ("update T set a=concat(a,'!'), b=a", "[('1!', '1!'), ('z!', 'z!')]"),
        ("update T set a=b/7 where b='x'", "[('0', 'x'), ('z', 'y')]"),
        ("update dbbench.T set T.a='q' where b='Y'", "[('1', 'x'), ('q', 'y')]"),
        ("truncate table T", "[]"),
        ("insert into T values (1.50, 1e3)", "[('1', 'x'), ('z', 'y'), ('1.50', '1000')]"),
        ("insert into T set a=007", "[('1', 'x'), ('z', 'y'), ('7', None)]"),
        ("replace into T (b) values (true)", "[('1', 'x'), ('z', 'y'), (None, '1')]"),
        ("insert into T (a) select b from T", "[('1', 'x'), ('z', 'y'), ('x', None), ('y', None)]"),
    ],
)
def test_a_change_stores_what_mysql_stores(sql: str, rows: str) -> None:
    database = opened(Table("T", ["a", "b"], [["1", "x"], ["z", "y"]]))
    assert database.execute(sql) == "[]"
    assert database.execute("select * from T") == rows
    database.close()


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("select * from nowhere", "1146 (42S02): Table 'dbbench.nowhere' doesn't exist"),
        ("select * from staff", "1146 (42S02): Table 'dbbench.staff' doesn't exist"),
        ("describe nowhere", "1146 (42S02): Table 'dbbench.nowhere' doesn't exist"),
        ("select `nope` from Staff", "1054 (42S22): Unknown column 'nope' in 'field list'"),
        ("select strftime('%Y', name) from Staff", "1305 (42000): FUNCTION dbbench.strftime"),
        ("select * from (select 1)", "1248 (42000): Every derived table must have its own alias"),
        ("insert into Staff values (1)", "1136 (21S01): Column count"),
        ("selec 1", "1064 (42000): You have an error in your SQL syntax"),
        ("select lpad(name, 9, '-') from Staff", "1305 (42000): FUNCTION dbbench.lpad does not"),
    ],
)
def test_what_mysql_refuses_is_refused_in_its_words(
    database: MysqlDatabase, sql: str, code: str
) -> None:
    assert database.execute(sql).startswith(f"Error executing query: {code}")


@pytest.mark.parametrize(
    "sql",
    [
        "select " + "(" * 500 + "1" + ")" * 500,
        "select " + "case when " * 300 + "1",
        "select " + "not " * 2000 + "1",
        "select " + "1+" * 3000 + "1",
        "select " + "x" * (MAX_PARSED + 1),
        "select f(" * 200,
    ],
)
def test_deep_and_long_statements_are_answered(database: MysqlDatabase, sql: str) -> None:
    assert isinstance(database.execute(sql), str)


@pytest.mark.parametrize(
    "sql",
    [
        "select name regexp '(a*)*(a*)*b' from Long",
        "select count(*) from Long, Long two where two.name like concat(left(Long.name, 9), '%b')",
        f"select count(*) from {MANY} where s1.name <> s2.pay",  # noqa: S608
    ],
)
def test_functions_end_with_the_statements_time(sql: str) -> None:
    """A clock by which time is up at the hundredth look."""
    seconds = itertools.count()
    long = Table("Long", ["name"], [["a" * 1_000]] * 100)
    database = opened(TABLE, long, timeout_s=100.0, clock=lambda: float(next(seconds)))
    assert database.execute(sql) == TIMED_OUT
    assert database.execute("select 1") == "[(1,)]"
    database.close()


@pytest.mark.parametrize("built", ["concat(name, name)", "replace(name, 'a', name)"])
def test_what_a_function_builds_is_bounded(built: str) -> None:
    database = opened(Table("Long", ["name"], [["a" * 900_000]]))
    assert database.execute(f"select {built} from Long").startswith("Error executing query: ")  # noqa: S608
    database.close()


def test_what_group_concat_holds_is_bounded() -> None:
    database = opened(Table("Long", ["name"], [["a" * 900_000]] * 3))
    assert database.execute("select length(group_concat(name)) from Long") == "[(900000,)]"
    database.close()


@pytest.mark.parametrize("change", ["a=concat(a,a)", "a=b+b, b=a+a"])
def test_assignments_of_assignments_do_not_grow_without_bound(change: str) -> None:
    database = opened(Table("T", ["a", "b"], [["1", "x"]]))
    sql = f"update T set {', '.join([change] * 40)}"  # noqa: S608
    assert database.execute(sql).startswith(("Error", "[]"))
    assert len(translate(sql)) < 100_000
    database.close()


def test_a_statement_that_is_parsed_again_and_again_is_given_up() -> None:
    """sqlglot takes year(…) for a type, then for a function: twice the work for each level."""
    deep = f"select {'year(' * 40}d{')' * 40} from `T`"  # noqa: S608
    assert translate(deep) == deep
    rows = ", ".join(["('it''s', 'b', 'year(c)', 1.5)"] * 600)
    assert len(rows) > 0.9 * MAX_PARSED
    assert translate(f"insert into T values {rows}").startswith("INSERT INTO")  # noqa: S608


def test_a_long_list_of_values_is_no_deep_expression() -> None:
    database = opened(Table("T", ["a", "b"], [["1", "x"], ["900", "y"]]))
    values = ", ".join(map(str, range(2, 1000)))
    assert database.execute(f"select b from T where a in ({values})") == "[('y',)]"  # noqa: S608
    assert database.execute("select 2 in (a in (5)), 0 in (a in (5)) from T limit 1") == "[(0, 1)]"
    long = f"select concat({', '.join(['a'] * 900)}) in ({values})"
    assert translate(long) == long
    database.close()


def test_a_bad_pattern_is_an_error(database: MysqlDatabase) -> None:
    assert database.execute("select 'a' regexp '('").startswith("Error executing query: ")


def test_names_in_backticks_never_turn_into_strings() -> None:
    assert translate('select `a``b`, "c" from `t`') == "SELECT `a``b`, 'c' FROM `t`"


words = st.sampled_from(WORDS.split())


@settings(max_examples=100, deadline=None)
@given(st.lists(words, max_size=25).map(" ".join) | st.text(max_size=60))
def test_any_text_is_answered_with_text(sql: str) -> None:
    database = opened()
    try:
        assert isinstance(database.execute(sql), str)
        assert isinstance(database.table_hash(), str)
    finally:
        database.close()


values = st.text(alphabet="aAbBéE1 -.%_", max_size=5)


@settings(max_examples=60, deadline=None)
@given(values, values, values)
def test_comparisons_agree_with_each_other(left: str, right: str, third: str) -> None:
    database = opened(Table("T", ["a", "b", "c"], [[left, right, third]]))
    reply = database.execute(
        "select a<b, a=b, a>b, a<=>b, a<=b, not a>b, a between b and c, a>=b and a<=c, "
        "a in (b,c), a=b or a=c from T"
    )
    found = [int(cell) for cell in reply.strip("[()]").split(", ")]
    assert sum(found[:3]) == 1
    assert found[1] == found[3]
    assert found[4] == found[5]
    assert found[6] == found[7]
    assert found[8] == found[9]
    database.close()
