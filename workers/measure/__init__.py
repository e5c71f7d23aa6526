"""What is measured on a device: samples, memory of runs and of external processes, peaks, and admission.

Start reading at ``monitor.py``, which takes every sample, and at ``admission.py`` for what a device may grant.
"""
