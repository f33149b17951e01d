"""Which groups are admitted and when: the dispatcher and what it decides by."""
