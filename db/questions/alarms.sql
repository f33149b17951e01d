-- Alarms by name and task
-- How often each alarm was raised, and at which versions. `still`: 1 if it is raised now.
SELECT r.name AS run, a.name, a.task, COUNT(*) AS raised, MIN(a.version) AS first_version,
       MAX(a.version) AS last_version, MAX(CASE WHEN n.name IS NULL THEN 0 ELSE 1 END) AS still
FROM alarms a
JOIN runs r ON r.run_id = a.run_id
LEFT JOIN updates u ON u.update_id = a.update_id
LEFT JOIN raised_alarms n ON n.run_id = a.run_id AND n.task = a.task AND n.name = a.name
WHERE a.ended_at IS NULL AND (u.update_id IS NULL OR u.state <> 'rolled_back')
GROUP BY r.name, a.name, a.task
ORDER BY r.name, raised DESC, a.name, a.task
