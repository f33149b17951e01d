-- Slow steps of policies and environments
-- Mean and longest seconds of a step, by task and track, without copies from another run.
SELECT r.name AS run, e.task, s.track, COUNT(*) AS steps, AVG(s.policy_s) AS policy_s,
       MAX(s.policy_s) AS longest_policy_s, AVG(s.env_s) AS env_s, MAX(s.env_s) AS longest_env_s
FROM steps s
JOIN episodes e ON e.episode_id = s.episode_id AND e.fence = s.fence
JOIN groups g ON g.group_id = e.group_id
JOIN runs r ON r.run_id = e.run_id
WHERE g.origin_id IS NULL
GROUP BY r.name, e.task, s.track
ORDER BY r.name, e.task, s.track
