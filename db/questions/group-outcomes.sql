-- How groups ended, and why
-- Groups by state and reason. `partial`: groups that lost members to infrastructure failures.
SELECT r.name AS run, o.task, o.state, o.reason, o.number, o.partial, o.lost_members
FROM group_outcomes o JOIN runs r ON r.run_id = o.run_id
ORDER BY r.name, o.task, o.state, COALESCE(o.reason, '')
