-- Age of trained tokens
-- Trained tokens by the number of updates between sampling and training.
SELECT r.name AS run, l.task, l.version - 1 - l.sampled_version AS lag,
       SUM(l.tokens) AS trained_tokens
FROM learned_tokens l JOIN runs r ON r.run_id = l.run_id
GROUP BY r.name, l.task, l.version - 1 - l.sampled_version
ORDER BY r.name, l.task, lag
