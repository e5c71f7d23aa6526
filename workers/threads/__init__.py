"""Waits on the monotonic clock, and calls with a time limit."""
