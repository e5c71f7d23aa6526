"""The relay of a worker host: it speaks HTTP with the service, and packs the files that jobs keep.

Start reading at ``relay.py``. ``link.py`` is the client of the service, ``deliveries.py`` sends what ended runs leave,
``logs.py`` says how, and ``requests.py`` serves what people ask for. Nothing here touches a device or a claim, so the
relay may die at any time.
"""
