"""The adapter `reasoning-gym:DATASET`: seeded problems, scored by the dataset's own scorer."""
