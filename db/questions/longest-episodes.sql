-- The longest episodes
-- The ten of each run that took most seconds from claim to end, and what they spent them on.
WITH ranked AS (
  SELECT t.*, ROW_NUMBER() OVER (
    PARTITION BY t.run_id ORDER BY t.run_s DESC, t.episode_id) AS place
  FROM episode_times t)
SELECT r.name AS run, k.task, k.episode_id, k.run_s, k.policy_s, k.env_s, k.other_s, k.turns,
       k.solved
FROM ranked k JOIN runs r ON r.run_id = k.run_id
WHERE k.place <= 10
ORDER BY r.name, k.place
