"""Studies whose arms differ in one setting, train on equal tokens and share one kind of report."""
