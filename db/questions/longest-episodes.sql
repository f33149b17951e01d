-- The longest episodes
-- The ten longest episodes from claim to end, and where their time went.
WITH ranked AS (
  SELECT t.*, ROW_NUMBER() OVER (
    PARTITION BY t.run_id ORDER BY t.run_s DESC, t.episode_id) AS place
  FROM episode_times t)
SELECT r.name AS run, k.task, k.episode_id, k.run_s, k.policy_s, k.env_s, k.other_s, k.turns,
       k.solved
FROM ranked k JOIN runs r ON r.run_id = k.run_id
WHERE k.place <= 10
ORDER BY r.name, k.place
