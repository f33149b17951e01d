-- Trained tokens without their sample
-- Trained episodes with tokens that the named checkpoint did not sample exactly once; a sound run
-- has none. `sampled`: tokens in the loss by the steps (NULL: not recorded); `trained`: by the
-- update. `unknown`, `unserved`: steps that name no checkpoint, or one that was not served; of a
-- copy only while the original exists.
WITH members AS (
  SELECT u.run_id, u.update_id, u.version, m.group_id, m.episode_id, m.fence,
         m.loss_tokens AS trained,
         COUNT(*) OVER (PARTITION BY u.run_id, m.episode_id) AS updates
  FROM update_groups m JOIN updates u ON u.update_id = m.update_id
  WHERE u.state = 'committed'),
traced AS (
  SELECT m.run_id, m.update_id, m.version, m.episode_id, m.trained, m.updates,
         CASE WHEN COUNT(s.number) = COUNT(s.trained)
              THEN COALESCE(SUM(CASE WHEN s.trained THEN s.token_end - s.token_start END), 0)
              END AS sampled,
         COUNT(CASE WHEN s.version >= 0 AND c.checkpoint_id IS NULL
                     AND (g.origin_id IS NULL OR o.group_id IS NOT NULL) THEN 1 END) AS unknown,
         COUNT(n.number) AS unserved
  FROM members m
  JOIN groups g ON g.group_id = m.group_id
  LEFT JOIN groups o ON o.group_id = g.origin_id
  LEFT JOIN steps s ON s.episode_id = m.episode_id AND s.fence = m.fence
  LEFT JOIN checkpoints c ON c.checkpoint_id = s.checkpoint_id AND c.version = s.version
  LEFT JOIN unserved_steps n
    ON n.episode_id = s.episode_id AND n.fence = s.fence AND n.number = s.number
  GROUP BY m.run_id, m.update_id, m.version, m.episode_id, m.trained, m.updates)
SELECT r.name AS run, t.version, t.episode_id, t.updates, t.trained, t.sampled, t.unknown, t.unserved
FROM traced t JOIN runs r ON r.run_id = t.run_id
WHERE t.updates > 1 OR t.trained <> t.sampled OR t.unknown > 0 OR t.unserved > 0
ORDER BY r.name, t.version, t.episode_id
