-- Rolled-back updates
-- Updates that left the live lineage, with the episodes and tokens that were played again.
SELECT r.name AS run, u.trainer_epoch, MIN(u.version) AS first_version,
       MAX(u.version) AS last_version, COUNT(*) AS updates_undone, SUM(u.episodes) AS episodes,
       SUM(u.loss_tokens) AS trained_tokens
FROM updates u JOIN runs r ON r.run_id = u.run_id
WHERE u.state = 'rolled_back'
GROUP BY r.name, u.trainer_epoch
ORDER BY r.name, u.trainer_epoch
