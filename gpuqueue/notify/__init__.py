"""Notifications at the end of a job: the message, the target, and the sender. See docs/internals/adr/0009."""
