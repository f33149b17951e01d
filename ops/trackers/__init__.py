"""Experiment trackers: one file per tracker, with the interface of ops/trackers/base.py."""
