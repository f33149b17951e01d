-- How often a group solves its item
-- pass_at_1: a member's success rate; pass_at_group, solved_by_all: the share of groups in which
-- one member, or every member, solved the item.
WITH outcome AS (
  SELECT g.run_id, g.task, g.group_id, MIN(e.score) AS worst, MAX(e.score) AS best,
         AVG(CASE WHEN e.score >= 1.0 THEN 1.0 ELSE 0.0 END) AS success
  FROM groups g JOIN episodes e ON e.group_id = g.group_id AND e.state = 'finished'
  WHERE g.state IN ('trained', 'filtered', 'stale')
  GROUP BY g.run_id, g.task, g.group_id)
SELECT r.name AS run, o.task, COUNT(*) AS groups_closed, AVG(o.success) AS pass_at_1,
       AVG(CASE WHEN o.best >= 1.0 THEN 1.0 ELSE 0.0 END) AS pass_at_group,
       AVG(CASE WHEN o.worst >= 1.0 THEN 1.0 ELSE 0.0 END) AS solved_by_all
FROM outcome o JOIN runs r ON r.run_id = o.run_id
GROUP BY r.name, o.task
ORDER BY r.name, o.task
