"""The devices of this host, behind one protocol: a driver's GPUs, the CPU, or simulated ones."""
