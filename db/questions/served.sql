-- Who served what, and when
-- Which server served which checkpoint, in seconds since the run was made. `until_s` NULL: still, at
-- most until the server's lease ends (`lease_s`); a live server extends it.
SELECT r.name AS run, p.name AS server, v.track, v.version, v.checkpoint_id,
       v.live_from - r.created_at AS from_s, v.live_until - r.created_at AS until_s,
       p.lease_until - r.created_at AS lease_s
FROM servings v
JOIN policy_servers p ON p.server_id = v.server_id
JOIN runs r ON r.run_id = v.run_id
ORDER BY r.name, v.live_from, p.name, v.track
