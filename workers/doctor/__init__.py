"""The part of ``gpuqueue doctor`` that only the machines' side can see: driver, cards, the jobs' Python, the runs."""
