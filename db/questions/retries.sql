-- Retries by reason
-- Episodes that were queued again or failed for good, by their last reason. `requeued` includes
-- those that a stopping worker gave back.
SELECT r.name AS run, e.task, e.state, e.reason, COUNT(*) AS episodes,
       SUM(e.fence - 1) AS requeued, SUM(e.attempts) AS attempts
FROM episodes e JOIN runs r ON r.run_id = e.run_id
WHERE e.fence > 1 OR e.state = 'failed'
GROUP BY r.name, e.task, e.state, e.reason
ORDER BY r.name, requeued DESC, e.task, e.state, COALESCE(e.reason, '')
