"""The relay of a worker host: it speaks HTTP with the service, and packs the files that jobs keep.

Start reading at ``relay.py``. ``link.py`` is the client of the service, ``code.py`` fetches the code of a job for a
worker, ``deliveries.py`` sends what ended runs leave, ``logs.py`` and ``results.py`` say how, ``requests.py`` serves
what people ask for, with ``terminals.py``. Nothing here touches a device or a claim, so the relay
may die at any time.
"""
