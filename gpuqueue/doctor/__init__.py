"""``gpuqueue doctor``: finds faults of a site from this machine. One module for each section of the report.

:mod:`gpuqueue.doctor.examination` gathers facts in parallel, each in its own thread with a time limit, because a
broken part may hang. The checks are then functions of these facts and cannot hang. Checks of the driver and of runs
belong to the ``workers`` package, which is run as the program ``gpuqueue-worker``.
"""
