"""The metrics of the site for Prometheus, and the answers about the health of the service.

Here: what is read of the store and the history for them, how often, their names, labels and help texts, and the text
that a scrape gets. Not here: the routes, which are in :mod:`gpuqueue.service.routes.health`. Only this package imports
``prometheus_client``. Start reading at ``exposition.py``.
"""
