"""A small door to the store, for whoever comes for one command and leaves: docs/adr/0008.

It does what the client library does as far as the queue asks for it, and imports nothing for that but sockets.
"""
