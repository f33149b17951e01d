-- Steps whose policy was replaced
-- Steps whose drawn policy refused or disappeared, by the server that answered.
SELECT r.name AS run, s.track, s.server_id, COUNT(*) AS steps, SUM(s.redrawn) AS replaced,
       MAX(s.redrawn) AS most_at_one_step
FROM steps s JOIN runs r ON r.run_id = s.run_id
WHERE s.redrawn > 0
GROUP BY r.name, s.track, s.server_id
ORDER BY r.name, replaced DESC, s.track, s.server_id
