-- Cost per success
-- Sampled tokens, prompt tokens (again at every step) and worker seconds per solved episode. Copies
-- of another run's episodes are left out.
WITH spent AS (
  SELECT e.run_id, e.task, e.score, e.ended_at - e.started_at AS seconds,
         SUM(s.token_end - s.token_start) AS sampled, SUM(s.prompt_tokens) AS prompts
  FROM episodes e JOIN steps s ON s.episode_id = e.episode_id AND s.fence = e.fence
  JOIN groups g ON g.group_id = e.group_id
  WHERE e.state = 'finished' AND g.origin_id IS NULL
  GROUP BY e.run_id, e.task, e.episode_id, e.score, e.ended_at, e.started_at)
SELECT r.name AS run, t.task, SUM(CASE WHEN t.score >= 1.0 THEN 1 ELSE 0 END) AS solved,
       1.0 * SUM(t.sampled) / NULLIF(SUM(CASE WHEN t.score >= 1.0 THEN 1 ELSE 0 END), 0)
         AS sampled_tokens,
       1.0 * SUM(t.prompts) / NULLIF(SUM(CASE WHEN t.score >= 1.0 THEN 1 ELSE 0 END), 0)
         AS prompt_tokens,
       SUM(t.seconds) / NULLIF(SUM(CASE WHEN t.score >= 1.0 THEN 1 ELSE 0 END), 0) AS seconds
FROM spent t JOIN runs r ON r.run_id = t.run_id
GROUP BY r.name, t.task
ORDER BY r.name, t.task
