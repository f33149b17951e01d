"""Second looks at stored episodes: new rewards for them, and training on them without playing."""
