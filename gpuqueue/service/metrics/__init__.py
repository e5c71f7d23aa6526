"""The metrics of the site for Prometheus, and the answers about the health of the service.

Here: what is read of the store and the history for them, how often, and the text that a scrape gets. The names, labels
and help texts of all metrics are in ``families.py`` (read from the store) and ``counters.py`` (counted here). Not here:
the routes, which are in :mod:`gpuqueue.service.routes.health`. Only this package imports ``prometheus_client``. Start
reading at ``exposition.py``.
"""
