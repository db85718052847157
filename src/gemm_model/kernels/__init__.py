"""Kernel families: what their kernels offer, need and can run."""
