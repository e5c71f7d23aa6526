"""The routes of the API, one module for each group of the client.

A route reads its parameters, and hands one function to :meth:`gpuqueue.service.site.Site.answer`, which does the work
for the caller in a thread. ``described.py`` holds what the OpenAPI document says about a route.
"""
