"""What runs inside a sandbox; nothing here imports a module from outside this folder."""
