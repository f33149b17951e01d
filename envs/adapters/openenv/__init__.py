"""The adapter `openenv:URL`: an environment of an OpenEnv server, with its tasks and tools."""
