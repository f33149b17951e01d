-- The lineage of a run's newest checkpoint
-- From the newest live checkpoint back to the first, across forks. `depth`: steps back.
WITH RECURSIVE newest AS (
  SELECT c.run_id, c.checkpoint_id, ROW_NUMBER() OVER (
    PARTITION BY c.run_id ORDER BY c.version DESC) AS place
  FROM checkpoints c WHERE c.state = 'live'),
line (root_run, depth, checkpoint_id) AS (
  SELECT run_id, 0, checkpoint_id FROM newest WHERE place = 1
  UNION ALL
  SELECT l.root_run, l.depth + 1, c.parent_id
  FROM line l JOIN checkpoints c ON c.checkpoint_id = l.checkpoint_id
  WHERE c.parent_id IS NOT NULL)
SELECT r.name AS run, l.depth, l.checkpoint_id, o.name AS made_by, c.version, c.state,
       CASE WHEN u.state <> 'committed' THEN 0 ELSE u.episodes END AS learned_episodes
FROM line l
JOIN runs r ON r.run_id = l.root_run
LEFT JOIN checkpoints c ON c.checkpoint_id = l.checkpoint_id
LEFT JOIN runs o ON o.run_id = c.run_id
LEFT JOIN updates u ON u.checkpoint_id = l.checkpoint_id
ORDER BY r.name, l.depth
