"""``gpuqueue doctor``: finds faults of a site from this machine. One module for each section of the report.

A check is a function in the list ``CHECKS`` of its section: it reads what it needs, judges it and names the remedy.
:mod:`gpuqueue.doctor.examination` runs the sections in parallel, each in its own thread with a time limit, because a
broken part may hang. Checks of the driver and of runs belong to the ``workers`` package, which is run as the program
``gpuqueue-worker``.
"""
