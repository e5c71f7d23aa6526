"""Conversion of specs, endings and records between values and JSON.

Every payload has a field ``v``, the version of the format. The files under ``tests/golden`` hold payloads of version 1,
which every later version must read. Unknown keys are ignored, so that a reader accepts the payloads of a newer writer.
A payload may be damaged or too new: a reader returns a value or raises :class:`~gpuqueue.errors.Unreadable`, and
nothing else. The text is pure ASCII. File names and arguments that are not valid UTF-8 become escaped surrogates, as
Python represents them, and are decoded unchanged.
"""

from __future__ import annotations

from gpuqueue.codec.request import (
    MAX_SPEC_BYTES,
    UNREADABLE,
    decode_ended,
    decode_environment,
    decode_notes,
    decode_request,
    decode_spec,
    decode_started,
    encode_ended,
    encode_environment,
    encode_notes,
    encode_spec,
    encode_started,
    member_note,
    of_member,
    shown_request,
    stand_in,
    whole_payload,
    with_environment,
    without_environment,
)

__all__ = [
    "MAX_SPEC_BYTES",
    "UNREADABLE",
    "decode_ended",
    "decode_environment",
    "decode_notes",
    "decode_request",
    "decode_spec",
    "decode_started",
    "encode_ended",
    "encode_environment",
    "encode_notes",
    "encode_spec",
    "encode_started",
    "member_note",
    "of_member",
    "shown_request",
    "stand_in",
    "whole_payload",
    "with_environment",
    "without_environment",
]
