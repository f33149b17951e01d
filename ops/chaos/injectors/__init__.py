"""The faults of `agentrl chaos`: each is a generator function that yields until it is over.

`ops/chaos/faults.py` decides which faults a run gets, and how often.
"""
