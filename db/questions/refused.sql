-- Refused transitions
-- Transitions that came too late, with the state that they found. `continue`: episodes that started
-- anew despite recorded steps, and why.
SELECT r.name AS run, t.transition, t.found, t.number
FROM refused_transitions t JOIN runs r ON r.run_id = t.run_id
ORDER BY r.name, t.number DESC, t.transition, t.found
