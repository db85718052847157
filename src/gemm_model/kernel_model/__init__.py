"""The kernel model of persistent kernels."""
