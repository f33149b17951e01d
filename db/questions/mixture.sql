-- The share of each task over time
-- The dispatcher's decisions in order, and how many groups each task had by then.
SELECT r.name AS run, m.number, m.version, m.task, m.share, m.progress, m.admitted
FROM mixtures m JOIN runs r ON r.run_id = m.run_id
ORDER BY r.name, m.number, m.task
