"""Programmatic dependent launch and L2 weight prefetch: the kernel, its model and its tuner."""
