"""Queries for the dashboard, reports and trackers: read-only, one file per subject."""
