"""Starts the kernels of Jupyter as jobs of a gpuqueue."""
