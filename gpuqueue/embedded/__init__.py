"""The embedded store of one machine, and the other processes that ``gpuqueue up`` starts there."""
