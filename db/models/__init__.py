"""The tables. Times are seconds since the epoch on the database's clock (`agentrl.db.store.now`).

runs ─┬─ groups ── episodes ─┬─ steps            what the workers did
      │                      ├─ trajectories     bodies, kept by the recorder
      │                      └─ journal          sampled steps of what is not stored there yet
      ├─ updates ── update_groups                what the trainer learned from, with hashes
      │     └────── alarms                       what of it was beyond a threshold, from when
      ├─ mixtures                                the share of each task, from when
      ├─ checkpoints ── servings                 what was served where, from when until when
      ├─ refusals                                what came too late, or never should have come
      ├─ evaluations ── evaluation_episodes      what was measured, item by item
      └─ workers · policy_servers · spendings · service_outages

The folder imports all its modules: `Base.metadata` has every table, whichever is imported.
"""

from agentrl.db.models import episodes, evaluations, processes, runs, updates

__all__ = ["episodes", "evaluations", "processes", "runs", "updates"]
