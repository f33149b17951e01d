"""The composition roots, one per process of a run.

    agentrl ROLE CONFIG ─▶ entry.run_role ─▶ ROLE.run(config, stop) ─▶ the loop of that process

`entry` reads the configuration, handles signals, begins the run and serves metrics and traces.
`run` opens database and broker (waiting for both), creates the components with their sections of
the configuration, runs the loop, and closes everything.
"""
