"""Questions of the dashboard, reports and trackers: reads only, one file per subject."""
