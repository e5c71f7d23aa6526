"""The server of the Model Context Protocol: the tools with which an agent uses the queue."""
