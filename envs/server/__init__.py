"""Environments over HTTP and in process: server, client, sessions."""
