"""What is measured on a device: memory samples of runs, peaks, external processes, and admission.

Start reading at ``sampler.py`` for the measurements and at ``admission.py`` for what a device may grant.
"""
