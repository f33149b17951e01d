-- Trained tokens by policy
-- Trained tokens by the checkpoint and track that sampled them.
SELECT r.name AS run, l.checkpoint_id, l.track, SUM(l.tokens) AS trained_tokens,
       1.0 * SUM(l.tokens) / SUM(SUM(l.tokens)) OVER (PARTITION BY r.name) AS share
FROM learned_tokens l JOIN runs r ON r.run_id = l.run_id
GROUP BY r.name, l.checkpoint_id, l.track
ORDER BY r.name, trained_tokens DESC, l.checkpoint_id, l.track
