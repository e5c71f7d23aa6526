"""The queue: Redis decides what may run now. The only room that imports redis."""
