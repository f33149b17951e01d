-- Trained and unused tokens
-- Sampled tokens by their groups' state and reason.
SELECT r.name AS run, g.state, g.reason, COUNT(*) AS episodes,
       SUM(e.loss_tokens) AS sampled_tokens,
       1.0 * SUM(e.loss_tokens) / NULLIF(SUM(SUM(e.loss_tokens)) OVER (PARTITION BY r.name), 0)
         AS share
FROM groups g
JOIN episodes e ON e.group_id = g.group_id AND e.state = 'finished'
JOIN runs r ON r.run_id = g.run_id
GROUP BY r.name, g.state, g.reason
ORDER BY r.name, sampled_tokens DESC, g.state, COALESCE(g.reason, '')
