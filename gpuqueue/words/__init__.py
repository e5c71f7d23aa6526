"""The sentences about jobs, runs and devices, which the command line, ``top``, the API and the page show.

Texts from users pass through :mod:`gpuqueue.text.sanitize`. Times are in the zone of who reads them.
"""
