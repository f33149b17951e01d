"""Processes of this machine, their ranks, threads and environment."""
