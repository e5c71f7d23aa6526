"""Notifications at the end of a job, and of an idle run: message, target and sender. See docs/internals/adr/0009."""
