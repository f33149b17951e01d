-- The first regression of an item
-- The first group in which an item's success fell below that of its group before.
WITH played AS (
  SELECT g.run_id, g.task, g.item_id, g.group_id, g.position, g.round, g.admitted_version,
         AVG(CASE WHEN e.score >= 1.0 THEN 1.0 ELSE 0.0 END) AS success
  FROM groups g JOIN episodes e ON e.group_id = g.group_id AND e.state = 'finished'
  WHERE g.state IN ('trained', 'filtered', 'stale')
  GROUP BY g.run_id, g.task, g.item_id, g.group_id, g.position, g.round, g.admitted_version),
compared AS (
  SELECT p.*, LAG(p.success) OVER (
    PARTITION BY p.run_id, p.task, p.item_id ORDER BY p.position, p.round) AS before
  FROM played p),
fallen AS (
  SELECT c.*, ROW_NUMBER() OVER (
    PARTITION BY c.run_id, c.task, c.item_id ORDER BY c.position, c.round) AS place
  FROM compared c WHERE c.success < c.before)
SELECT r.name AS run, f.task, f.item_id, f.group_id, f.admitted_version AS version, f.before,
       f.success
FROM fallen f JOIN runs r ON r.run_id = f.run_id
WHERE f.place = 1
ORDER BY r.name, f.before - f.success DESC, f.task, f.item_id
