"""Views for people. They have no state: `db upgrade` recreates them, `up` after a migration.

`accounting` lists every disagreement between the three witnesses (`episodes`, `trajectories`,
`update_groups`) and every open row past its deadline. An empty view proves that nothing was lost,
nothing was trained twice, and every failed or untrained group has a reason. A body that is not
stored yet counts only past its deadline, or when its run is over.

`raised_alarms`: alarms raised now. `group_outcomes`: states of groups and their reasons.
`item_success`: latest success of each item. `episode_outcomes`: states of episodes and their
reasons. `refused_transitions`: transitions that came too late. Views for reports only are in
`db/audit/reporting_views.py`.
"""

from sqlalchemy import Connection, TextClause, text

from agentrl.core.types import Reason
from agentrl.db.audit import reporting_views
from agentrl.db.store import now

GRACE_S = 30.0  # an open row may be this late before it is called overdue
WAITING_S = 86_400.0  # a ready group may wait so long for the trainer

# One SELECT tells several kinds of what it joins: a long run's rows are read as seldom as can be.
ACCOUNTING = """
SELECT CASE WHEN t.episode_id IS NULL THEN 'episode_without_body'
            WHEN t.sha256 <> e.body_sha256 THEN 'hash_differs'
            ELSE 'steps_missing' END AS kind,
       e.run_id, e.group_id, e.episode_id, e.fence,
       CASE WHEN t.episode_id IS NULL THEN 'finished, its body is not stored'
            WHEN t.sha256 <> e.body_sha256
              THEN 'stored ' || t.sha256 || ', claimed ' || e.body_sha256
            ELSE e.turns || ' turns, the first of them is not stored' END AS detail,
       e.reason AS reason
FROM {episodes} e JOIN runs r ON r.run_id = e.run_id JOIN groups g ON g.group_id = e.group_id
LEFT JOIN trajectories t ON t.episode_id = e.episode_id AND t.fence = e.fence
LEFT JOIN steps s ON s.episode_id = e.episode_id AND s.fence = e.fence AND s.number = 0
WHERE e.state = 'finished'
  AND CASE WHEN t.episode_id IS NULL THEN
             (e.due_at + {grace} < {now} AND (r.ended_at IS NOT NULL OR r.recorded_until = 0
              OR e.ended_at < r.recorded_until)) OR (r.ended_at IS NOT NULL AND g.state = 'trained'
             AND r.ended_at + {grace} < {now})
           WHEN t.sha256 <> e.body_sha256 THEN TRUE
           ELSE e.turns > 0 AND s.episode_id IS NULL END
UNION ALL
SELECT 'body_differs', t.run_id, NULL, t.episode_id, t.fence,
       'stored ' || LENGTH(t.body) || ' bytes, ' || t.body_bytes || ' came', NULL
FROM {bodies} t WHERE LENGTH(t.body) > 0 AND LENGTH(t.body) <> t.body_bytes
UNION ALL
SELECT 'body_of_no_episode', t.run_id, NULL, t.episode_id, t.fence,
       'a stored body names an episode that does not exist, or a fence it never had', NULL
FROM {trajectories} t LEFT JOIN episodes e ON e.episode_id = t.episode_id
WHERE e.episode_id IS NULL OR t.fence > e.fence
UNION ALL
SELECT CASE WHEN e.state <> 'finished' OR e.fence <> u.fence OR e.body_sha256 <> u.sha256
              THEN 'trained_unfinished'
            WHEN e.group_id <> u.group_id THEN 'trained_elsewhere'
            ELSE 'member_tokens_differ' END,
       e.run_id, e.group_id, e.episode_id, u.fence,
       CASE WHEN e.state <> 'finished' OR e.fence <> u.fence OR e.body_sha256 <> u.sha256
              THEN 'update ' || u.update_id || ' learned from another attempt than the one that'
                   || ' finished'
            WHEN e.group_id <> u.group_id THEN 'update ' || u.update_id || ' names group '
                   || u.group_id
            ELSE 'update ' || u.update_id || ' names ' || u.loss_tokens || ' loss tokens, its '
                   || 'worker sampled ' || e.loss_tokens END,
       e.reason
FROM {update_groups} u JOIN updates v ON v.update_id = u.update_id
JOIN episodes e ON e.episode_id = u.episode_id
WHERE v.state <> 'rolled_back'
  AND (e.state <> 'finished' OR e.fence <> u.fence OR e.body_sha256 <> u.sha256
       OR e.group_id <> u.group_id OR e.loss_tokens <> u.loss_tokens)
UNION ALL
SELECT 'trained_twice', v.run_id, MIN(u.group_id), u.episode_id, MIN(u.fence),
       COUNT(*) || ' updates of the live lineage', NULL
FROM {update_groups} u JOIN updates v ON v.update_id = u.update_id
WHERE v.state <> 'rolled_back'
GROUP BY v.run_id, u.episode_id HAVING COUNT(*) > 1
UNION ALL
SELECT 'group_without_update', g.run_id, g.group_id, NULL, NULL,
       'trained, but no update of the live lineage names it', g.reason
FROM {groups} g
WHERE g.state = 'trained' AND NOT EXISTS (
  SELECT 1 FROM update_groups u JOIN updates v ON v.update_id = u.update_id
  WHERE u.group_id = g.group_id AND v.state <> 'rolled_back')
UNION ALL
SELECT 'member_not_trained', e.run_id, e.group_id, e.episode_id, e.fence,
       'its group was trained without it', e.reason
FROM {groups} g JOIN episodes e ON e.group_id = g.group_id
WHERE g.state = 'trained' AND e.state = 'finished' AND NOT EXISTS (
  SELECT 1 FROM update_groups u JOIN updates v ON v.update_id = u.update_id
  WHERE u.episode_id = e.episode_id AND v.state <> 'rolled_back')
UNION ALL
SELECT 'update_of_open_group', g.run_id, g.group_id, NULL, NULL,
       'an update of the live lineage names it, its state is ' || g.state, g.reason
FROM {groups} g
WHERE g.state <> 'trained' AND EXISTS (
  SELECT 1 FROM update_groups u JOIN updates v ON v.update_id = u.update_id
  WHERE u.group_id = g.group_id AND v.state <> 'rolled_back')
UNION ALL
SELECT CASE WHEN COUNT(e.episode_id) <> g.size THEN 'members_differ' ELSE 'pending_differs' END,
       g.run_id, g.group_id, NULL, NULL,
       'size ' || g.size || ', members ' || COUNT(e.episode_id) || '; pending says ' || g.pending
       || ', open members: '
       || SUM(CASE WHEN e.state IN ('queued', 'running') THEN 1 ELSE 0 END), g.reason
FROM {groups} g LEFT JOIN episodes e ON e.group_id = g.group_id
GROUP BY g.run_id, g.group_id, g.size, g.pending, g.reason
HAVING COUNT(e.episode_id) <> g.size
  OR g.pending <> SUM(CASE WHEN e.state IN ('queued', 'running') THEN 1 ELSE 0 END)
UNION ALL
SELECT 'open_without_pending', g.run_id, g.group_id, NULL, NULL,
       'open, but every member has ended: it trains never and keeps its place', g.reason
FROM {groups} g WHERE g.state = 'open' AND g.pending <= 0
UNION ALL
SELECT 'ready_untrained', g.run_id, g.group_id, NULL, NULL,
       'ready for more than a day, and no trainer took it', g.reason
FROM {groups} g JOIN runs r ON r.run_id = g.run_id
WHERE g.state = 'ready' AND r.state = 'running' AND g.origin_id IS NULL
  AND g.ready_at + {waiting} < {now}
UNION ALL
SELECT 'version_without_update', r.run_id, NULL, NULL, NULL,
       'the run is at version ' || r.version || ', its live updates end at '
       || COALESCE(MAX(v.version), 0), NULL
FROM {runs} r LEFT JOIN updates v ON v.run_id = r.run_id AND v.state <> 'rolled_back'
GROUP BY r.run_id, r.version HAVING r.version <> COALESCE(MAX(v.version), 0)
UNION ALL
SELECT 'version_trained_twice', v.run_id, NULL, NULL, NULL,
       COUNT(*) || ' live updates made version ' || v.version, NULL
FROM {updates} v WHERE v.state <> 'rolled_back'
GROUP BY v.run_id, v.version HAVING COUNT(*) > 1
UNION ALL
SELECT 'checkpoint_without_update', c.run_id, NULL, NULL, NULL,
       c.checkpoint_id || ' is live, but no live update made it', NULL
FROM {checkpoints} c
WHERE c.state = 'live' AND c.version > 0 AND NOT EXISTS (
  SELECT 1 FROM updates v WHERE v.run_id = c.run_id AND v.version = c.version
  AND v.checkpoint_id = c.checkpoint_id AND v.state <> 'rolled_back')
UNION ALL
SELECT 'update_tokens_differ', v.run_id, NULL, NULL, NULL,
       'update ' || v.update_id || ' names ' || v.loss_tokens || ' loss tokens, its members '
       || SUM(u.loss_tokens), NULL
FROM {update_groups} u JOIN updates v ON v.update_id = u.update_id
WHERE v.state <> 'rolled_back'
GROUP BY v.run_id, v.update_id, v.loss_tokens, v.episodes
HAVING COUNT(*) = v.episodes AND SUM(u.loss_tokens) <> v.loss_tokens
UNION ALL
SELECT 'overdue', e.run_id, e.group_id, e.episode_id, e.fence, e.state || ' past its deadline',
       e.reason
FROM {episodes} e JOIN runs r ON r.run_id = e.run_id
WHERE r.state = 'running' AND e.state IN ('queued', 'running')
  AND COALESCE(NULLIF(e.due_at, 0), e.queued_at) + {grace} < {now}
UNION ALL
SELECT 'open_after_end', e.run_id, e.group_id, e.episode_id, e.fence, e.state, e.reason
FROM {episodes} e JOIN runs r ON r.run_id = e.run_id
WHERE r.ended_at IS NOT NULL AND e.state IN ('queued', 'running')
UNION ALL
SELECT 'without_reason', e.run_id, e.group_id, e.episode_id, e.fence,
       e.state || ' without a reason that is known', e.reason
FROM {episodes} e
WHERE e.state IN ('failed', 'cancelled') AND COALESCE(e.reason, '') NOT IN ({reasons})
UNION ALL
SELECT 'without_reason', g.run_id, g.group_id, NULL, NULL,
       g.state || ' without a reason that is known', g.reason
FROM {groups} g
WHERE g.state NOT IN ('open', 'ready', 'trained') AND COALESCE(g.reason, '') NOT IN ({reasons})
"""

# A step may name the track a moment after it moved on, while another track still serves the same
# checkpoint: what matters is that the server held the checkpoint while it sampled. What served the
# steps of a copy was deleted with the run of its original.
UNSERVED_STEPS = """
SELECT s.run_id, s.episode_id, s.fence, s.number, s.server_id, s.checkpoint_id, s.version,
       s.requested_at, s.policy_s
FROM {steps} s
WHERE NOT EXISTS (
  SELECT 1 FROM servings v JOIN checkpoints c ON c.checkpoint_id = v.checkpoint_id
  WHERE v.checkpoint_id = s.checkpoint_id AND v.server_id = s.server_id
    AND c.version = s.version AND v.live_from <= s.requested_at + s.policy_s + {clock}
    AND (v.live_until IS NULL OR s.requested_at <= v.live_until + {clock}))
  AND NOT EXISTS (
    SELECT 1 FROM episodes e JOIN groups g ON g.group_id = e.group_id
    WHERE e.episode_id = s.episode_id AND g.origin_id IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM groups o WHERE o.group_id = g.origin_id))
"""

# The latest word on each task and name, of updates that were not rolled back.
RAISED = """
WITH told AS (
  SELECT a.*, ROW_NUMBER() OVER (
    PARTITION BY a.run_id, a.task, a.name ORDER BY a.alarm_id DESC) AS place
  FROM alarms a LEFT JOIN updates u ON u.update_id = a.update_id
  WHERE u.update_id IS NULL OR u.state <> 'rolled_back')
SELECT run_id, task, name, value, threshold, version, update_id, raised_at
FROM told WHERE place = 1 AND ended_at IS NULL
"""

# `partial`: groups that lost members to infrastructure; `lost_members`: how many they lost.
OUTCOMES = """
SELECT g.run_id, g.task, g.state, g.reason, COUNT(*) AS number,
       SUM(CASE WHEN COALESCE(f.lost, 0) > 0 THEN 1 ELSE 0 END) AS partial,
       SUM(COALESCE(f.lost, 0)) AS lost_members
FROM groups g
LEFT JOIN (SELECT group_id, COUNT(*) AS lost FROM episodes WHERE state = 'failed'
           GROUP BY group_id) f ON f.group_id = g.group_id
GROUP BY g.run_id, g.task, g.state, g.reason
"""

# Why attempts that are not finished were last given up, and how episodes ended.
ENDS = """
SELECT run_id, task, state, status, reason, COUNT(*) AS number, SUM(attempts) AS attempts
FROM episodes GROUP BY run_id, task, state, status, reason
"""

REFUSED = """
SELECT run_id, transition, found, COUNT(*) AS number, MAX(refused_at) AS latest
FROM refusals GROUP BY run_id, transition, found
"""

# By its latest closed group, as retirement and difficulty windows look at it.
ITEMS = """
WITH closed AS (
  SELECT g.run_id, g.task, g.item_id, g.position, g.horizon,
         AVG(CASE WHEN e.score >= 1.0 THEN 1.0 ELSE 0.0 END) AS success
  FROM groups g JOIN episodes e ON e.group_id = g.group_id AND e.state = 'finished'
  WHERE g.state IN ('trained', 'filtered', 'stale')
  GROUP BY g.group_id, g.run_id, g.task, g.item_id, g.position, g.horizon, g.round),
ranked AS (
  SELECT closed.*, ROW_NUMBER() OVER (
    PARTITION BY run_id, task, item_id ORDER BY position DESC) AS place,
    COUNT(*) OVER (PARTITION BY run_id, task, item_id) AS number
  FROM closed)
SELECT run_id, task, item_id, number AS closed_groups, position AS last_position, success, horizon
FROM ranked WHERE place = 1
"""

# As `undone_checkpoints`: an evaluation `v` of a checkpoint that was not rolled back.
NOT_UNDONE = """\
WHERE v.checkpoint_id NOT IN (
  SELECT checkpoint_id FROM checkpoints WHERE state = 'rolled_back'
  UNION ALL SELECT checkpoint_id FROM updates WHERE state = 'rolled_back')"""

# Of the episodes themselves, so that it is right while an evaluation still goes on. Success, score
# and reward are means over items, whose numbers of repeats may differ.
MEASURED = """
SELECT v.evaluation_id, v.run_id, r.name AS run, v.policy, v.checkpoint_id, v.version, v.task,
       v.split, v.temperature, v.items, v.repeats, v.planned,
       COALESCE(p.episodes, v.episodes) AS episodes, COALESCE(q.success, v.success) AS success,
       v.low, v.high, q.score, q.reward, p.turns, p.tokens, p.sampled_tokens, p.abnormal,
       p.seconds, p.machine_s, p.cost, v.created_at, COALESCE(p.ended_at, v.created_at) AS ended_at
FROM evaluations v LEFT JOIN runs r ON r.run_id = v.run_id
LEFT JOIN (
  SELECT evaluation_id, COUNT(*) AS episodes, AVG(turns * 1.0) AS turns,
         AVG(tokens * 1.0) AS tokens, AVG(sampled_tokens * 1.0) AS sampled_tokens,
         AVG(CASE WHEN status = 'completed' THEN 0.0 ELSE 1.0 END) AS abnormal,
         AVG(seconds) AS seconds, SUM(machine_s) AS machine_s, SUM(cost) AS cost,
         MAX(ended_at) AS ended_at
  FROM evaluation_episodes GROUP BY evaluation_id) p ON p.evaluation_id = v.evaluation_id
LEFT JOIN (
  SELECT evaluation_id, AVG(success) AS success, AVG(score) AS score, AVG(reward) AS reward
  FROM (
    SELECT evaluation_id, item_id, AVG(CASE WHEN score >= 1.0 THEN 1.0 ELSE 0.0 END) AS success,
           AVG(score) AS score, AVG(reward) AS reward
    FROM evaluation_episodes GROUP BY evaluation_id, item_id) i
  GROUP BY evaluation_id) q ON q.evaluation_id = v.evaluation_id
{not_undone}
"""

EACH_ITEM = """
SELECT v.evaluation_id, v.run_id, v.policy, v.version, v.task, v.split, v.temperature, p.item_id,
       COUNT(*) AS episodes, AVG(CASE WHEN p.score >= 1.0 THEN 1.0 ELSE 0.0 END) AS success,
       AVG(p.score) AS score, AVG(p.turns * 1.0) AS turns
FROM evaluations v JOIN evaluation_episodes p ON p.evaluation_id = v.evaluation_id
{not_undone}
GROUP BY v.evaluation_id, v.run_id, v.policy, v.version, v.task, v.split, v.temperature, p.item_id
"""

# Of one run: what is open, what closed after :since, what belongs to it, and bodies since then;
# and all its updates, checkpoints and damaged bodies, which are few.
LATE = """
WITH late_runs AS (SELECT * FROM runs WHERE run_id = :run_id),
late_updates AS (SELECT * FROM updates WHERE run_id = :run_id),
late_checkpoints AS (SELECT * FROM checkpoints WHERE run_id = :run_id),
late_bodies AS (SELECT * FROM trajectories WHERE run_id = :run_id),
late_groups AS (
  SELECT * FROM groups WHERE run_id = :run_id AND (closed_at IS NULL OR closed_at > :since)),
late_episodes AS (
  SELECT e.* FROM late_groups g JOIN episodes e ON e.group_id = g.group_id
  UNION SELECT * FROM episodes WHERE run_id = :run_id AND state IN ('queued', 'running')),
late_trajectories AS (
  SELECT episode_id, fence, run_id, sha256 FROM trajectories
  WHERE run_id = :run_id AND received_at >= :since),
late_update_groups AS (
  SELECT u.* FROM late_episodes e JOIN update_groups u ON u.episode_id = e.episode_id),
late_steps AS (SELECT s.* FROM late_episodes e JOIN steps s ON s.episode_id = e.episode_id)
"""

CLOCK_S = 0.05  # a worker's estimate of the database's clock may be off by this much

WALK_TABLES = (
    "groups", "episodes", "trajectories", "update_groups", "steps", "runs", "updates", "checkpoints"
)  # fmt: skip

VIEWS = {
    "accounting": ACCOUNTING,
    "unserved_steps": UNSERVED_STEPS,
    "raised_alarms": RAISED,
    "group_outcomes": OUTCOMES,
    "item_success": ITEMS,
    "episode_outcomes": ENDS,
    "refused_transitions": REFUSED,
    "evaluation_results": MEASURED,
    "evaluation_items": EACH_ITEM,
}


def create_views(connection: Connection) -> None:
    """Drop and create every view."""
    proofs = {name: _query(name, connection, "") for name in VIEWS}
    for name, query in (proofs | reporting_views.render_views(connection)).items():
        connection.execute(text(f"DROP VIEW IF EXISTS {name}"))
        body = query.replace("::", "\\:\\:")
        connection.execute(text(f"CREATE VIEW {name} AS {body}"))


def late_statement(name: str, connection: Connection) -> TextClause:
    """Return `accounting` or `unserved_steps` for rows that can still change.

    Parameters :run_id and :since (database clock): only groups closed after it, and bodies received
    then or later.
    """
    query = f"{LATE}{_query(name, connection, 'late_')}"
    return text(query.replace("::", "\\:\\:"))


def _query(name: str, connection: Connection, prefix: str) -> str:
    """Return a view's SELECT. `prefix`: of its tables."""
    return VIEWS[name].format(
        now=now().compile(dialect=connection.dialect),
        grace=GRACE_S,
        waiting=WAITING_S,
        clock=CLOCK_S,
        not_undone=NOT_UNDONE,
        reasons=", ".join(f"'{reason}'" for reason in Reason),
        bodies=f"{prefix}bodies" if prefix else "trajectories",
        **{table: f"{prefix}{table}" for table in WALK_TABLES},
    )
