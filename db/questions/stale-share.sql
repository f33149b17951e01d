-- The share of stale groups
-- How many of the groups that could be trained were too old.
SELECT r.name AS run, g.task, COUNT(*) AS groups_closed,
       SUM(CASE WHEN g.state = 'stale' THEN 1 ELSE 0 END) AS stale,
       AVG(CASE WHEN g.state = 'stale' THEN 1.0 ELSE 0.0 END) AS share
FROM groups g JOIN runs r ON r.run_id = g.run_id
WHERE g.state IN ('trained', 'filtered', 'stale')
GROUP BY r.name, g.task
ORDER BY r.name, g.task
