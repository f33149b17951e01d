import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from known_runs import RUN, write_known_runs
from sqlalchemy import text

from agentrl.core.errors import StoreError
from agentrl.db.questions import answer_question, question, questions
from agentrl.db.store import Store

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"

# Worked out by hand from the plan in tests/support/known_runs.py; every row begins with the run,
# which is left out. A value with a point or a fraction may be off by rounding, any other is exact.
ANSWERS = """
accounting
  kind  number  an_episode  a_group

acting-checkpoints
  checkpoint_id  track      steps  episodes  solved_episodes
  c0             current    7      4         2
  c0             lagged(1)  3      3         2
  c1             current    8      8         2

alarms
  name       task  raised  first_version  last_version  still
  entropy    ''    1       1              1             0
  max_ratio  ''    1       2              2             1

cost-per-success
  task      solved  sampled_tokens  prompt_tokens  seconds
  alfworld  3       100/3           350/3          21.0
  dbbench   1       80.0            190.0          74.0

endings
  task      status      episodes  turns  tokens  success
  alfworld  completed   3         5/3    50.0    1.0
  alfworld  task_limit  3         5/3    50.0    0.0
  dbbench   completed   1         2.0    60.0    1.0
  dbbench   task_limit  6         1.0    30.0    0.0

evaluations
  task     split  version  checkpoint_id  temperature  planned  episodes  success  low    high
  dbbench  test   0        c0             0.0          4        4         0.25     0.125  1.0
  dbbench  test   2        c2             0.0          4        4         0.75     0.375  1.0

first-regression
  task     item_id  group_id  version  before  success
  dbbench  item-1   g-d       1        0.5     0.0

group-outcomes
  task      state        reason             number  partial  lost_members
  alfworld  rolled_back  rolled_back        1       0        0
  alfworld  trained      NULL               2       0        0
  dbbench   failed       too_few_survivors  1       1        2
  dbbench   filtered     zero_spread        1       0        0
  dbbench   open         NULL               1       0        0
  dbbench   stale        too_stale          1       0        0
  dbbench   trained      NULL               1       0        0

group-pass
  task      groups_closed  pass_at_1  pass_at_group  solved_by_all
  alfworld  2              0.5        1.0            0.0
  dbbench   3              1/6        1/3            0.0

how-learning-went
  version state trained_tokens seconds trained_success entropy grad_norm effective_sample_size mismatch_k3
  1 committed 80 4.0 0.5 1.5 0.25 NULL NULL
  2 committed 30 4.0 0.5 0.75 0.25 NULL NULL

items-never-solved
  task     item_id  episodes  groups_played  best_score
  dbbench  item-2   3         2              0.0

lagged-success
  task      lagged  episodes  success
  alfworld  none    4         0.25
  alfworld  some    2         1.0
  dbbench   all     1         0.0
  dbbench   none    6         1/6

learned-from
  version  state        task      groups_learned  episodes  trained_tokens  trained_reward  oldest
  1        committed    alfworld  1               2         50      0.5     0
  1        committed    dbbench   1               2         30      0.5     0
  2        rolled_back  alfworld  1               2         20      0.5     1
  2        committed    alfworld  1               2         30      0.5     0

learned-lag
  task      lag  trained_tokens
  alfworld  0    70
  alfworld  1    10
  dbbench   0    30

learned-tokens
  checkpoint_id  track      trained_tokens  share
  c0             current    60      6/11
  c0             lagged(1)  30      3/11
  c1             current    20      2/11

lineage
  depth  checkpoint_id  made_by  version  state  learned_episodes
  0      c2             story    2        live   2
  1      c1             story    1        live   4
  2      c0             story    0        live   NULL

longest-episodes
  task      episode_id  run_s  policy_s  env_s  other_s  turns  solved
  dbbench   g-a-1       11.0   2.0       0.5    8.5      1      0
  alfworld  g-b-1       11.0   6.0       1.5    3.5      3      0
  dbbench   g-c-1       11.0   2.0       0.5    8.5      1      0
  dbbench   g-d-1       11.0   2.0       0.5    8.5      1      0
  alfworld  g-e-1       11.0   2.0       0.5    8.5      1      0
  alfworld  g-f-1       11.0   2.0       0.5    8.5      1      0
  dbbench   g-h-1       11.0   2.0       0.5    8.5      1      0
  dbbench   g-a-0       10.0   4.0       1.0    5.0      2      1
  alfworld  g-b-0       10.0   4.0       1.0    5.0      2      1
  dbbench   g-c-0       10.0   2.0       0.5    7.5      1      0

mixed-episodes
  task      checkpoints  episodes  steps  success
  alfworld  1            5         1.6    0.4
  alfworld  2            1         2.0    1.0
  dbbench   1            7         8/7    1/7

mixture
  number  version  task      share  progress  admitted
  0       0        alfworld  0.5    NULL      0
  0       0        dbbench   0.5    NULL      0
  1       1        alfworld  0.25   NULL      2
  1       1        dbbench   0.75   NULL      2

refused
  transition  found   number
  finish      failed  2

replaced-policies
  track      server_id  steps  replaced  most_at_one_step
  lagged(1)  s1         1      2         2

retries
  task      state     reason     episodes  requeued  attempts
  dbbench   failed    env_error  1         2         3
  dbbench   failed    lost       1         2         3
  alfworld  finished  NULL       1         1         2
  dbbench   queued    timeout    1         1         1

rolled-back
  trainer_epoch  first_version  last_version  updates_undone  episodes  trained_tokens
  1              2              2             1               2         20

served
  server  track      version  checkpoint_id  from_s  until_s  lease_s
  policy  current    0        c0             0.0     110.0    999999000000.0
  policy  lagged(1)  0        c0             0.0     NULL     999999000000.0
  policy  current    1        c1             90.0    NULL     999999000000.0

slow-steps
  task      track      steps  policy_s  longest_policy_s  env_s  longest_env_s
  alfworld  current    8      2.0       2.0               0.5    0.5
  alfworld  lagged(1)  2      2.0       2.0               0.5    0.5
  dbbench   current    7      2.0       2.0               0.5    0.5
  dbbench   lagged(1)  1      2.0       2.0               0.5    0.5

stale-share
  task      groups_closed  stale  share
  alfworld  2              0      0.0
  dbbench   3              1      1/3

success-by-version
  task      version  episodes  success
  alfworld  0        2         0.5
  alfworld  1        4         0.5
  dbbench   0        3         1/3
  dbbench   1        4         0.0

throughput-by-hour
  hour  episodes  sampled_tokens  success
  0     10        140     0.3
  1     2         30      0.5
  2     1         10      0.0

tokens-unused
  state        reason       episodes  sampled_tokens  share
  trained      NULL         6         110     11/18
  filtered     zero_spread  2         20      1/9
  rolled_back  rolled_back  2         20      1/9
  stale        too_stale    2         20      1/9
  open         NULL         1         10      1/18

untraceable-tokens
  version  episode_id  updates  trained  sampled  unknown  unserved

where-time-goes
  task      episodes  queue_s  policy_s  env_s  other_s  siblings_s  trainer_s
  alfworld  6         2.0      10/3      5/6    19/3     0.5         30.0
  dbbench   7         2.0      16/7      4/7    54/7     0.5         30.0

workers
  worker_id  host   finished  failed  failed_share  ended
  w2         there  0         2       1.0           1
  w1         here   13        0       0.0           0

zero-spread
  task      groups_closed  zero_spread  none_solved  all_solved
  alfworld  2              0.0          0.0          0.0
  dbbench   3              1/3          1/3          0.0
"""  # noqa: E501


@pytest.fixture
def told(store: Store) -> Store:
    write_known_runs(store)
    return store


def test_every_question_is_answered_as_the_story_says(told: Store) -> None:
    blocks = [block.splitlines() for block in ANSWERS.strip().split("\n\n")]
    assert [block[0] for block in blocks] == [each.name for each in questions()]
    for name, columns, *rows in blocks:
        answer = answer_question(told, name, RUN)
        assert answer.columns == ("run", *columns.split()), name
        assert len(answer.rows) == len(rows), (name, answer.rows)
        for found, row in zip(answer.rows, rows, strict=True):
            for value, wanted in zip(found, [RUN, *row.split()], strict=True):
                assert _is(value, wanted), (name, found, row)


def _is(value: Any, wanted: str) -> bool:
    if isinstance(value, float):
        return value == pytest.approx(float(Fraction(wanted)), rel=1e-12)
    return wanted == {None: "NULL", "": "''"}.get(value, str(value))


def test_the_story_holds_together(told: Store) -> None:
    with told.read() as session:
        for view in ("accounting", "unserved_steps"):
            found = session.connection().exec_driver_sql(f"SELECT * FROM {view}")  # noqa: S608
            assert found.all() == []


def test_what_is_lost_is_an_answer_of_accounting(told: Store) -> None:
    with told.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE groups SET state = 'ready', pending = 1 WHERE group_id = 'g-a'"
        )
    assert [row[1:3] for row in answer_question(told, "accounting").rows] == [
        ("pending_differs", 1),
        ("ready_untrained", 1),
        ("update_of_open_group", 1),
    ]


def test_a_lineage_goes_on_in_the_run_that_was_forked(told: Store) -> None:
    rows = answer_question(told, "lineage", "fork").rows
    assert [row[:4] for row in rows] == [
        ("fork", 0, "k0", "fork"),
        ("fork", 1, "c1", "story"),
        ("fork", 2, "c0", "story"),
    ]
    assert {row[0] for row in answer_question(told, "lineage").rows} == {"fork", RUN}
    assert answer_question(told, "lineage", "another").rows == []


def test_a_skipped_update_has_learned_nothing(told: Store) -> None:
    with told.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE updates SET state = 'skipped' WHERE version = 2 AND state = 'committed'"
        )
    tokens = [row[1:4] for row in answer_question(told, "how-learning-went", RUN).rows]
    assert tokens == [(1, "committed", 80), (2, "skipped", 0)]
    episodes = [(row[4], row[6]) for row in answer_question(told, "lineage", RUN).rows]
    assert episodes == [(2, 0), (1, 4), (0, None)]


def test_an_external_model_is_of_no_version(told: Store) -> None:
    with told.write() as session:
        for change in (
            "UPDATE steps SET version = -1 WHERE episode_id IN ('g-a-0', 'g-a-1')",
            "UPDATE steps SET version = -1 WHERE episode_id = 'g-b-0' AND number = 0",
        ):
            session.connection().exec_driver_sql(change)
    success = [row[1:4] for row in answer_question(told, "success-by-version", RUN).rows]
    assert success == [
        ("alfworld", 0, 2),
        ("alfworld", 1, 4),
        ("dbbench", None, 2),
        ("dbbench", 0, 1),
        ("dbbench", 1, 4),
    ]
    oldest = [(row[1], row[3], row[8]) for row in answer_question(told, "learned-from", RUN).rows]
    assert oldest[:2] == [(1, "alfworld", 0), (1, "dbbench", None)]


@pytest.mark.parametrize("name", ["cost-per-success", "slow-steps"])
def test_copies_cost_nothing_again(told: Store, name: str) -> None:
    with told.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE groups SET origin_id = 'original' WHERE task = 'alfworld'"
        )
    assert {row[1] for row in answer_question(told, name, RUN).rows} == {"dbbench"}


def test_an_empty_store_answers_every_question_with_nothing(store: Store) -> None:
    for each in questions():
        answer = answer_question(store, each.name)
        assert answer.columns[0] == "run"
        assert answer.rows == [], each.name


def test_an_unknown_question_is_refused_with_the_nearest() -> None:
    with pytest.raises(StoreError, match="no question retrys; did you mean retries") as refused:
        question("retrys")
    assert refused.value.hint == "list the questions with `agentrl sql --questions`"


def test_the_page_lists_every_question_once() -> None:
    bullets = PAGE.read_text().partition("## The questions")[2].partition("The SQL of")[0]
    listed = re.findall(r"`([\w-]+)`", bullets)
    assert sorted(listed) == [each.name for each in questions()]


def test_every_question_says_what_it_answers() -> None:
    assert all(each.meaning.endswith(".") for each in questions())


def test_the_page_shows_questions_as_they_are() -> None:
    shown = PAGE.read_text().split("```sql\n")[1:]
    asked = [each.sql + "\n" for each in questions()]
    assert shown
    assert all(block.partition("```")[0] in asked for block in shown)


@pytest.mark.parametrize(
    ("damage", "row"),
    [
        ("UPDATE steps SET trained = FALSE WHERE episode_id = 'g-b-1' AND number = 2",
         (1, "g-b-1", 1, 30, 20, 0, 0)),
        ("UPDATE update_groups SET loss_tokens = 21 WHERE episode_id = 'g-a-0'",
         (1, "g-a-0", 1, 21, 20, 0, 0)),
        ("DELETE FROM steps WHERE episode_id = 'g-f-1'", (2, "g-f-1", 1, 10, 0, 0, 0)),
        ("UPDATE steps SET checkpoint_id = 'c9' WHERE episode_id = 'g-a-1'",
         (1, "g-a-1", 1, 10, 10, 1, 1)),
        ("UPDATE steps SET requested_at = requested_at - 1e4 WHERE episode_id = 'g-b-0'",
         (1, "g-b-0", 1, 20, 20, 0, 2)),
    ],
)  # fmt: skip
def test_a_trained_token_without_its_sample_is_an_answer(
    told: Store, damage: str, row: tuple[Any, ...]
) -> None:
    with told.write() as session:
        session.connection().exec_driver_sql(damage)
    assert answer_question(told, "untraceable-tokens").rows == [(RUN, *row)]


@pytest.mark.parametrize(
    "sound",
    [
        "UPDATE steps SET trained = FALSE WHERE episode_id = 'g-f-1';"
        "UPDATE update_groups SET loss_tokens = 0 WHERE episode_id = 'g-f-1'",
        "UPDATE steps SET trained = NULL WHERE episode_id = 'g-b-1' AND number = 2",
    ],
)
def test_what_the_steps_leave_out_or_do_not_say_is_no_answer(told: Store, sound: str) -> None:
    with told.write() as session:
        for statement in sound.split(";"):
            session.connection().exec_driver_sql(statement)
    assert answer_question(told, "untraceable-tokens").rows == []


def test_copies_whose_original_was_deleted_are_sound_and_have_no_times(told: Store) -> None:
    damage = (
        "UPDATE steps SET checkpoint_id = 'gone' WHERE episode_id = 'g-f-0'",
        "UPDATE groups SET origin_id = 'g-a' WHERE group_id = 'g-f'",
        "UPDATE groups SET origin_id = 'deleted' WHERE group_id = 'g-f'",
    )
    found = []
    for statement in damage:
        with told.write() as session:
            session.connection().exec_driver_sql(statement)
            unserved = session.scalar(text("SELECT COUNT(*) FROM unserved_steps"))
            times = session.scalar(
                text("SELECT COUNT(*) FROM episode_times WHERE group_id = 'g-f'")
            )
        found.append((len(answer_question(told, "untraceable-tokens").rows), unserved, times))
    assert found == [(1, 2, 2), (1, 2, 0), (0, 0, 0)]


def test_tokens_that_two_updates_trained_are_an_answer(told: Store) -> None:
    with told.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE updates SET state = 'committed' WHERE state = 'rolled_back'"
        )
        session.connection().exec_driver_sql(
            "UPDATE update_groups SET episode_id = 'g-f-0' WHERE episode_id = 'g-e-0'"
        )
    twice = [row[2:4] for row in answer_question(told, "untraceable-tokens").rows]
    assert twice.count(("g-f-0", 2)) == 2


def test_tokens_that_a_rule_leaves_out_are_not_learned(told: Store) -> None:
    before = {row[1:3]: row[3] for row in answer_question(told, "learned-tokens", RUN).rows}
    with told.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE steps SET trained = FALSE WHERE episode_id = 'g-b-1' AND number = 2"
        )
    after = {row[1:3]: row[3] for row in answer_question(told, "learned-tokens", RUN).rows}
    assert after == before | {("c0", "current"): before["c0", "current"] - 10}


def test_all_loss_tokens_of_steps_recorded_before_the_column_trained_are_learned(
    told: Store,
) -> None:
    before = answer_question(told, "learned-tokens").rows
    with told.write() as session:
        session.connection().exec_driver_sql("UPDATE steps SET trained = NULL")
    assert answer_question(told, "learned-tokens").rows == before
    assert answer_question(told, "untraceable-tokens").rows == []
