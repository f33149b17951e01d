"""The adapter `verifiers:TASKSET`: an environment of verifiers, played by its own rollout."""
