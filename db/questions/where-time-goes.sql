-- Where time goes
-- Mean seconds of a finished episode: queued, asking policies, in the environment, else in the
-- worker; then waiting for its siblings, and for the trainer to close its group.
SELECT r.name AS run, t.task, COUNT(*) AS episodes, AVG(t.queue_s) AS queue_s,
       AVG(t.policy_s) AS policy_s, AVG(t.env_s) AS env_s, AVG(t.other_s) AS other_s,
       AVG(t.siblings_s) AS siblings_s, AVG(t.trainer_s) AS trainer_s
FROM episode_times t JOIN runs r ON r.run_id = t.run_id
GROUP BY r.name, t.task
ORDER BY r.name, t.task
