"""One composition root per process of a run, named after its role, and what processes answer.

    agentrl ROLE CONFIG ─▶ entry.run_role ─▶ ROLE.run(config, stop) ─▶ the loop of that process

`entry` reads the configuration, takes signals, begins the run and serves metrics and traces; `run`
opens store and broker, waiting for both, makes the components of their sections, hands over to the
loop, and closes.
"""
