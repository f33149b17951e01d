"""Views for people, and the audit of a finished run. Both only read."""
