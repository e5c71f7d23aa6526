"""Snapshots: the files of a directory at one moment, which travel with a job to the host that runs it.

A snapshot is a manifest, which names each file and link, and the blobs: the file contents. The address of a blob is its
SHA-256, so equal files are sent and stored once.

- ``manifest.py`` has the values and the strict reader; start reading there. ``names.py`` and ``links.py`` have the
  rules for paths and for links, ``limits.py`` those for sizes.
- ``take.py`` takes a snapshot of a directory, on the submitter's machine. It selects the paths, by git or without it.
  ``ignore.py`` reads the ignore files, ``secret_files.py`` and ``key_files.py`` refuse what should not leave,
  ``contents.py`` reads and hashes, ``hash_cache.py`` remembers the hashes, ``pack.py`` makes the manifest.
- ``commit_diff.py`` describes how a snapshot differs from its commit.
- ``blob_store.py`` keeps blobs and manifests at the service. ``stream.py`` sends a whole snapshot in one stream.
- ``unpack.py`` makes the files again, as the job's user. It needs the standard library only, as do the modules that it
  imports, because it also runs outside of the installation's environment.

Not here: the files that come back after the run (:mod:`gpuqueue.results`), HTTP, settings, which jobs use which
snapshot, and when to collect.
"""
