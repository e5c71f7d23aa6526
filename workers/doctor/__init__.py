"""The checks of ``gpuqueue doctor`` that run on a GPU host: driver, cards, the jobs' Python, the runs."""
