"""The HTTP service: one authenticated door in front of the client."""
