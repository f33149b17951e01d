-- Tokens trained, and tokens that were not
-- Tokens that policies sampled in finished episodes, by what became of their groups and why.
SELECT r.name AS run, g.state, g.reason, COUNT(*) AS episodes, SUM(e.loss_tokens) AS tokens,
       1.0 * SUM(e.loss_tokens) / NULLIF(SUM(SUM(e.loss_tokens)) OVER (PARTITION BY r.name), 0)
         AS share
FROM groups g
JOIN episodes e ON e.group_id = g.group_id AND e.state = 'finished'
JOIN runs r ON r.run_id = g.run_id
GROUP BY r.name, g.state, g.reason
ORDER BY r.name, tokens DESC, g.state, COALESCE(g.reason, '')
