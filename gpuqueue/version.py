"""The version of gpuqueue, in a module that every layer may import."""

VERSION = "0.2.0"
