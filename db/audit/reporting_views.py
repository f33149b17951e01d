"""Views that join tables of a run, for people and prepared questions.

`episode_policies`: policies that sampled a finished episode. `episode_times`: its time by part, in
seconds. `learned_tokens`: trained tokens of each update of the live lineage, by sampling policy,
without steps that are known not to be in the loss. `update_metrics`: the most important metrics of
updates, as columns.
"""

from sqlalchemy import Connection

# Lagged: sampled by another track than `current`. An external model is of no version.
EPISODE_POLICIES = """
SELECT e.run_id, e.task, e.group_id, e.episode_id, e.score,
       CASE WHEN e.score >= 1.0 THEN 1 ELSE 0 END AS solved, COUNT(*) AS steps,
       SUM(CASE WHEN s.track = 'current' THEN 0 ELSE 1 END) AS lagged_steps,
       COUNT(DISTINCT s.checkpoint_id) AS checkpoints,
       MIN(CASE WHEN s.version >= 0 THEN s.version END) AS oldest_version,
       MAX(CASE WHEN s.version >= 0 THEN s.version END) AS newest_version
FROM episodes e JOIN steps s ON s.episode_id = e.episode_id AND s.fence = e.fence
WHERE e.state = 'finished'
GROUP BY e.run_id, e.task, e.group_id, e.episode_id, e.score
"""

# `hour`: whole hours from the run's beginning to the episode's end. `queue_s`: of the attempt that
# finished. `siblings_s`: from its end until its group was ready; `trainer_s`: until that closed.
# Copies are left out: they have the times of the original.
TIMES = """
SELECT e.run_id, e.task, e.group_id, e.episode_id, e.turns, e.loss_tokens,
       CASE WHEN e.score >= 1.0 THEN 1 ELSE 0 END AS solved,
       {hour} AS hour, e.started_at - e.queued_at AS queue_s,
       e.ended_at - e.started_at AS run_s, s.policy_s, s.env_s,
       e.ended_at - e.started_at - s.policy_s - s.env_s AS other_s,
       g.ready_at - e.ended_at AS siblings_s, g.closed_at - g.ready_at AS trainer_s
FROM episodes e
JOIN groups g ON g.group_id = e.group_id
JOIN runs r ON r.run_id = e.run_id
LEFT JOIN (SELECT episode_id, fence, SUM(policy_s) AS policy_s, SUM(env_s) AS env_s
           FROM steps GROUP BY episode_id, fence) s
  ON s.episode_id = e.episode_id AND s.fence = e.fence
WHERE e.state = 'finished' AND g.origin_id IS NULL
"""

LEARNED = """
SELECT u.run_id, u.update_id, u.version, e.task, m.group_id, m.episode_id, s.checkpoint_id,
       s.version AS sampled_version, s.track, COUNT(*) AS steps,
       SUM(s.token_end - s.token_start) AS tokens
FROM updates u
JOIN update_groups m ON m.update_id = u.update_id
JOIN episodes e ON e.episode_id = m.episode_id
JOIN steps s ON s.episode_id = m.episode_id AND s.fence = m.fence
WHERE u.state = 'committed' AND s.version >= 0 AND COALESCE(s.trained, TRUE)
GROUP BY u.run_id, u.update_id, u.version, e.task, m.group_id, m.episode_id, s.checkpoint_id,
         s.version, s.track
"""

METRICS = """
SELECT run_id, version, update_id, state, groups, episodes, loss_tokens,
       committed_at - started_at AS seconds, {metrics}
FROM updates
"""

MEASURED = (
    "reward",
    "success",
    "loss",
    "entropy",
    "grad_norm",
    "effective_sample_size",
    "max_ratio",
    "clip_fraction",
    "mismatch_k3",
)
HOURS = {
    "sqlite": "CAST((e.ended_at - r.created_at) / 3600 AS INTEGER)",
    "postgresql": "CAST(FLOOR((e.ended_at - r.created_at) / 3600) AS INTEGER)",
}

READING = {
    "episode_policies": EPISODE_POLICIES,
    "episode_times": TIMES,
    "learned_tokens": LEARNED,
    "update_metrics": METRICS,
}


def render_views(connection: Connection) -> dict[str, str]:
    """Return each view's SELECT in the dialect of the database."""
    name = connection.dialect.name
    metric = "json_extract(metrics, '$.{0}') AS {0}"
    if name != "sqlite":
        metric = "CAST(metrics ->> '{0}' AS double precision) AS {0}"
    values = {
        "hour": HOURS[name],
        "metrics": ", ".join(metric.format(each) for each in MEASURED),
    }
    return {view: body.format(**values) for view, body in READING.items()}
