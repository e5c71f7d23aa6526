"""The version of this gpuqueue. It stands here because every floor may need it, and the package's face sees all."""

VERSION = "0.1.0"
