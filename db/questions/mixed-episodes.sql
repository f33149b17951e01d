-- Episodes with several checkpoints
-- Episodes and success by the number of checkpoints that acted.
SELECT r.name AS run, p.task, p.checkpoints, COUNT(*) AS episodes, AVG(p.steps) AS steps,
       AVG(p.solved) AS success
FROM episode_policies p JOIN runs r ON r.run_id = p.run_id
GROUP BY r.name, p.task, p.checkpoints
ORDER BY r.name, p.task, p.checkpoints
