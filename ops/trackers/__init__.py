"""Where else the figures of a run go: a file for each tracker of ops/trackers/base.py."""
