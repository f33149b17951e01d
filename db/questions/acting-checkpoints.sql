-- Which checkpoint acted in successful episodes
-- For each checkpoint and track: its steps, the episodes with them, and how many were solved.
SELECT r.name AS run, s.checkpoint_id, s.track, COUNT(*) AS steps,
       COUNT(DISTINCT e.episode_id) AS episodes,
       COUNT(DISTINCT CASE WHEN e.score >= 1.0 THEN e.episode_id END) AS solved_episodes
FROM episodes e
JOIN steps s ON s.episode_id = e.episode_id AND s.fence = e.fence
JOIN runs r ON r.run_id = e.run_id
WHERE e.state = 'finished'
GROUP BY r.name, s.checkpoint_id, s.track
ORDER BY r.name, solved_episodes DESC, s.checkpoint_id, s.track
