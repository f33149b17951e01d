-- How episodes ended
-- Statuses of finished episodes with turns, tokens and success.
SELECT r.name AS run, e.task, e.status, COUNT(*) AS episodes, AVG(e.turns) AS turns,
       AVG(e.tokens) AS tokens, AVG(CASE WHEN e.score >= 1.0 THEN 1.0 ELSE 0.0 END) AS success
FROM episodes e JOIN runs r ON r.run_id = e.run_id
WHERE e.state = 'finished'
GROUP BY r.name, e.task, e.status
ORDER BY r.name, e.task, e.status
