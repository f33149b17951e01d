-- Inconsistencies
-- Inconsistencies between rows, bodies and updates, by kind. A sound run has none.
SELECT r.name AS run, a.kind, COUNT(*) AS number, MIN(a.episode_id) AS an_episode,
       MIN(a.group_id) AS a_group
FROM accounting a JOIN runs r ON r.run_id = a.run_id
GROUP BY r.name, a.kind
ORDER BY r.name, a.kind
