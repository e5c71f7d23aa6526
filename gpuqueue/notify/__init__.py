"""Notifications at the end of a job, and of a marked run: message, target and sender. See docs/internals/adr/0009."""
