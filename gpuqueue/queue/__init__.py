"""The queue in Redis. This is the only package that imports redis."""
