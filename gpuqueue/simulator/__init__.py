"""Replays a trace of jobs at a simulated site, under gpuqueue's policy (its real scripts) and under other policies."""
