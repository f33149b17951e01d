"""What `agentrl chaos` does to a run: each fault is a function that yields until it is over.

Which of them a run is given, how often and for whom: `ops/chaos/faults.py`.
"""
