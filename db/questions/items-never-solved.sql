-- Items never solved
-- Items whose finished episodes all failed, the most tried first.
SELECT r.name AS run, e.task, e.item_id, COUNT(*) AS episodes,
       COUNT(DISTINCT e.group_id) AS groups_played, MAX(e.score) AS best_score
FROM episodes e JOIN runs r ON r.run_id = e.run_id
WHERE e.state = 'finished'
GROUP BY r.name, e.task, e.item_id
HAVING MAX(e.score) < 1.0
ORDER BY r.name, episodes DESC, e.task, e.item_id
