"""The adapter `harbor:DIR`: task folders in the format of Harbor and Terminal-Bench 2."""
