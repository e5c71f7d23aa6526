"""The client of the HTTP service: the same groups of functions as the direct client, over a socket.

Here: a small HTTP client, requests and streams with reconnection, the list of operations, and the groups, each a class
that inherits from the direct one. Not here: anything of the store or the history database. No module imports a library
beyond the standard one, nor ``http.client``, whose import of the email package takes longer than the rest of a submit.
Start reading at ``link.py``, then ``operations.py``.
"""
