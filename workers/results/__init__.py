"""Results: the files that a job made or changed in its copy of the code, packed into a tar archive.

- ``command.py`` is the command ``gpuqueue-worker pack``; start reading there. It packs in its own process, or asks the
  launcher if the copy belongs to another account. It also takes files from an archive that was packed before.
- ``pack.py`` finds the files by patterns, and packs them.

All but ``command.py`` needs the standard library only, because the launcher has it run as the job's account. That
account may change the directory at any time: nothing here follows a link, and nothing is read that is no regular file.
Not here: when results are packed, and where they go; the archive itself (:mod:`gpuqueue.files.archive`).
"""
