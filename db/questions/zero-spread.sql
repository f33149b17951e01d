-- The share of groups without spread
-- Groups whose members all got the same reward. `none_solved`, `all_solved`: those where no member,
-- or every member, solved the item.
WITH outcome AS (
  SELECT g.run_id, g.task, g.group_id, g.reason, MIN(e.score) AS worst, MAX(e.score) AS best
  FROM groups g JOIN episodes e ON e.group_id = g.group_id AND e.state = 'finished'
  WHERE g.state IN ('trained', 'filtered', 'stale')
  GROUP BY g.run_id, g.task, g.group_id, g.reason)
SELECT r.name AS run, o.task, COUNT(*) AS groups_closed,
       AVG(CASE WHEN o.reason = 'zero_spread' THEN 1.0 ELSE 0.0 END) AS zero_spread,
       AVG(CASE WHEN o.reason = 'zero_spread' AND o.best < 1.0 THEN 1.0 ELSE 0.0 END) AS none_solved,
       AVG(CASE WHEN o.reason = 'zero_spread' AND o.worst >= 1.0 THEN 1.0 ELSE 0.0 END) AS all_solved
FROM outcome o JOIN runs r ON r.run_id = o.run_id
GROUP BY r.name, o.task
ORDER BY r.name, o.task
