"""The GPU host's side of gpuqueue. Never imports gpuqueue.client or gpuqueue.cli."""
