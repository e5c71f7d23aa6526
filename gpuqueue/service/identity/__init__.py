"""Who calls the service, how often, and what the caller changed.

Here: callers from the kernel and from access tokens (``authenticate``), limits of requests, and the audit
log's journal. Not here: what a caller may do, which is in :mod:`gpuqueue.model.access`, and HTTP, which calls this
package. It needs no library of the service. Start reading at ``authenticate.py``.
"""
