-- Where time goes
-- Mean seconds of a finished episode: queued, in policy calls, in the environment, otherwise in the
-- worker, waiting for its group and for the trainer.
SELECT r.name AS run, t.task, COUNT(*) AS episodes, AVG(t.queue_s) AS queue_s,
       AVG(t.policy_s) AS policy_s, AVG(t.env_s) AS env_s, AVG(t.other_s) AS other_s,
       AVG(t.siblings_s) AS siblings_s, AVG(t.trainer_s) AS trainer_s
FROM episode_times t JOIN runs r ON r.run_id = t.run_id
GROUP BY r.name, t.task
ORDER BY r.name, t.task
