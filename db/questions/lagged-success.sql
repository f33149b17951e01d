-- Success with lagged policies
-- Success of episodes in which none, some or all steps were sampled by another track than
-- `current`.
WITH acted AS (
  SELECT p.*, CASE WHEN p.lagged_steps = 0 THEN 'none'
                   WHEN p.lagged_steps = p.steps THEN 'all' ELSE 'some' END AS lagged
  FROM episode_policies p)
SELECT r.name AS run, a.task, a.lagged, COUNT(*) AS episodes, AVG(a.solved) AS success
FROM acted a JOIN runs r ON r.run_id = a.run_id
GROUP BY r.name, a.task, a.lagged
ORDER BY r.name, a.task, a.lagged
