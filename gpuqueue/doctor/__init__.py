"""``gpuqueue doctor``: what can be wrong on a site, seen from this machine. A file for each room of the report.

:mod:`gpuqueue.doctor.examination` tells the story: looks are sent out all at once, each in a thread of its own and
with a limit, because whatever is broken may hang; the checks then judge what came back, and hang on nothing. What
needs the driver or knows the runs is the machines' side's to see: it is asked as a program.
"""
