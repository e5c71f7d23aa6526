"""Threads and time: waiting on a clock that cannot be set, and calls with a time limit."""
