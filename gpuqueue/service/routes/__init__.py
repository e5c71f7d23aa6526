"""The routes of the API, one module for each group of the client.

A route reads its parameters, and hands one function to :meth:`gpuqueue.service.site.Site.answer`, which does the work
for the caller in a thread. ``described.py`` reads the parameters by the signature of the function, and describes the
route for the OpenAPI document.
"""
