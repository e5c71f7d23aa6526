"""What the service does for the page: its files, its cookie, and a shared copy of the queue.

Here: files and their headers (``files``), the cookie and the defence against other sites (``cookie``), and the rows
of the tables (``queue_copy``, ``rows``, ``table``). Not here: the page itself, which is in ``gpuqueue/web``,
and who may do what, which is the same as for every other caller. Start reading at ``files.py``.
"""
