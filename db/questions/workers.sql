-- Workers by failed episodes
-- The last attempts of each worker, by failed share. `ended`: 1 if it ended cleanly.
SELECT r.name AS run, w.worker_id, w.host,
       SUM(CASE WHEN e.state = 'finished' THEN 1 ELSE 0 END) AS finished,
       SUM(CASE WHEN e.state = 'failed' THEN 1 ELSE 0 END) AS failed,
       AVG(CASE WHEN e.state = 'failed' THEN 1.0 ELSE 0.0 END) AS failed_share,
       CASE WHEN w.ended_at IS NULL THEN 0 ELSE 1 END AS ended
FROM workers w
JOIN runs r ON r.run_id = w.run_id
JOIN episodes e ON e.worker_id = w.worker_id AND e.state IN ('finished', 'failed')
GROUP BY r.name, w.worker_id, w.host, w.ended_at
ORDER BY r.name, failed_share DESC, w.worker_id
