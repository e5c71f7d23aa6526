"""Notifications at the end of a job: the message, the target, and the process that sends it. See docs/adr/0009."""
