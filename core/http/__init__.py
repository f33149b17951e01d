"""Parts of HTTP servers and clients: sockets, tokens, bounded answers."""
