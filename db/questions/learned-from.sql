-- What each update learned from
-- Groups, episodes, tokens and reward of each update. `oldest`: the oldest version that sampled; NULL:
-- external models alone.
SELECT r.name AS run, u.version, u.state, e.task, COUNT(DISTINCT m.group_id) AS groups_learned,
       COUNT(*) AS episodes, SUM(m.loss_tokens) AS trained_tokens,
       AVG(e.reward) AS trained_reward, MIN(p.oldest_version) AS oldest
FROM updates u
JOIN update_groups m ON m.update_id = u.update_id
JOIN episodes e ON e.episode_id = m.episode_id
JOIN runs r ON r.run_id = u.run_id
LEFT JOIN episode_policies p ON p.episode_id = m.episode_id
GROUP BY r.name, u.version, u.state, u.update_id, u.committed_at, e.task
ORDER BY r.name, u.committed_at, u.version, e.task
