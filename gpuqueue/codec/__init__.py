"""Conversion of specs, endings and records between values and JSON.

Every payload has a field ``v``, the version of the format. The files under ``tests/golden`` hold payloads of version 1,
which every later version must read. Unknown keys are ignored, so that a reader accepts the payloads of a newer writer.
A payload may be damaged or too new: a reader returns a value or raises :class:`~gpuqueue.errors.Unreadable`, and
nothing else. The text is pure ASCII. File names and arguments that are not valid UTF-8 become escaped surrogates, as
Python represents them, and are decoded unchanged.
"""
