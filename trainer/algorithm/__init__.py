"""The mathematics of an update: advantages, objective, metrics, alarms; no engine, no I/O."""
