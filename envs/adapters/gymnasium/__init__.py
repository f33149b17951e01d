"""The adapter `gymnasium:ID`: reset, step and per-step rewards of an environment of Gymnasium."""
