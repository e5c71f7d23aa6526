"""Estimates the GPU memory that a script needs, from earlier runs or from a dry run on the CPU."""
