-- Learning metrics by update
-- The metrics of each update that show problems first. NULL: not measured.
SELECT r.name AS run, m.version, m.state,
       CASE WHEN m.state = 'committed' THEN m.loss_tokens ELSE 0 END AS trained_tokens, m.seconds,
       m.success AS trained_success, m.entropy, m.grad_norm, m.effective_sample_size, m.mismatch_k3
FROM update_metrics m JOIN runs r ON r.run_id = m.run_id
WHERE m.state <> 'rolled_back'
ORDER BY r.name, m.version
