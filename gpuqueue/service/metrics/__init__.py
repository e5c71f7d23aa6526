"""The metrics of the site for Prometheus, and the answers about the health of the service.

Here: what is read of the store and the history for them, how often, and the text that a scrape gets. The names, labels
and help texts of the metrics are in ``exposition.py``, those about requests in ``requests.py``. Not here: the routes,
which are in :mod:`gpuqueue.service.routes.health`. Only this package imports ``prometheus_client``. Start reading at
``exposition.py``.
"""
