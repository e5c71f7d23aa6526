"""The part of gpuqueue that runs on a GPU host. Never imports gpuqueue.client or gpuqueue.cli."""
