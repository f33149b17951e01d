"""Views made for people and the audit of a run that is over; they read and change nothing."""
