"""The built-in client of the store, for processes that run one command. See docs/internals/adr/0008.

It implements the part of redis-py that the queue uses, and imports only sockets for that.
"""
