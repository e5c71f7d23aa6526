"""The HTTP service: the authenticated API in front of the client.

Here: the routes of the API, who may see what of a job, streams of events, the OpenAPI document, and the server process.
Not here: what a request does, which is in :mod:`gpuqueue.client`, and the JSON of values, which is in
:mod:`gpuqueue.codec.wire`. Only the command ``serve`` and the recorder of ``up`` import this package; it needs the
extra ``service``. Start reading at ``site.py``, then ``routes/jobs.py``.
"""
