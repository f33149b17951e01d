"""The adapter `mcp:COMMAND` or `mcp:URL`: any MCP server's tools as an environment."""
