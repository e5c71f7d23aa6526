"""Results: the files of a run that come back to a person, from the archive that a host or the service sends.

The archive is hostile input, since a job chooses the names in it: nothing is ever written outside of the directory.

- ``receive.py`` writes the files of an archive into a directory; start reading there.
- ``archive.py`` reads the archive and checks each name.

Not here: where the archive comes from (:mod:`gpuqueue.client`), and who makes it (``workers/results``).
"""
