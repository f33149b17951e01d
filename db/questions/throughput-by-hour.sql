-- Throughput by hour
-- Finished episodes, sampled tokens and success by hour of the run.
SELECT r.name AS run, t.hour, COUNT(*) AS episodes, SUM(t.loss_tokens) AS sampled_tokens,
       AVG(t.solved) AS success
FROM episode_times t JOIN runs r ON r.run_id = t.run_id
GROUP BY r.name, t.hour
ORDER BY r.name, t.hour
