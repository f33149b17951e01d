"""What an episode samples and returns: bodies, the journal of its steps, recordings, copies."""
