"""The MCP server: agents look up what is remembered, from little to much, and add to it."""
