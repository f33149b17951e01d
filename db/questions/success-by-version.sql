-- Success by task and version
-- Success by the newest version that acted in an episode. NULL: external models alone.
SELECT r.name AS run, p.task, p.newest_version AS version, COUNT(*) AS episodes,
       AVG(p.solved) AS success
FROM episode_policies p JOIN runs r ON r.run_id = p.run_id
GROUP BY r.name, p.task, p.newest_version
ORDER BY r.name, p.task, COALESCE(p.newest_version, -1)
