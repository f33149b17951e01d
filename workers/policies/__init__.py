"""Which policy samples the next step, and the client that asks it."""
