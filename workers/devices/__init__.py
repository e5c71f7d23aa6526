"""The devices of this host behind one protocol: NVIDIA GPUs, the CPU, or simulated devices."""
