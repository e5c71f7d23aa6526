"""Files travel: the code of a job to the host that runs it, and the files of a run back to a person.

Code travels as a snapshot: the files of a directory at one moment. It is a manifest, which names each file and link,
and the blobs: the file contents. The address of a blob is its SHA-256, so equal files are sent and stored once. Files
come back as an archive. A job chooses the names in it, so it is hostile input: nothing is written outside of the
directory.

- ``manifest.py`` has the values, the strict reader and the stream of a whole snapshot; start reading there.
  ``names.py`` has the rules for paths and for links, ``limits.py`` those for sizes.
- ``take.py`` takes a snapshot of a directory, on the submitter's machine. It selects the paths, by git or without it.
  ``ignore.py`` reads the ignore files, ``secret_files.py`` refuses what should not leave, ``contents.py`` reads, hashes
  and remembers the hashes. ``commit_diff.py`` describes how a snapshot differs from its commit.
- ``blob_store.py`` keeps blobs and manifests at the service. ``collect.py`` lists and deletes them.
- ``unpack.py`` makes the files again, as the job's user.
- ``archive.py`` writes and reads the archive of a run's files, ``receive.py`` writes the files of one into a directory.
  ``pack_program.py`` runs the program that packs, and ``kept.py`` says what is there of the files that a job keeps.

``unpack.py``, ``archive.py`` and the modules that they import need the standard library only, because they also run
outside of the installation's environment.

Not here: HTTP, which jobs use which snapshot, when to collect, and which files of a run are packed
(``workers/results``).
"""
