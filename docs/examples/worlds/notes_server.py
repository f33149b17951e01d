"""An MCP server that keeps notes for one session."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
notes: dict[str, str] = {}


@server.tool()
def write(name: str, text: str) -> str:
    """Write a note."""
    notes[name] = text
    return f"{len(notes)} notes"


@server.tool()
def read(name: str) -> str:
    """Read a note."""
    return notes.get(name, "no such note")


server.run()
