"""The full-screen view of ``gpuqueue top``: a snapshot, its lines (pure), and the screen that shows them."""
