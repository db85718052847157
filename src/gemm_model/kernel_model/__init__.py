"""The calibrated model of persistent kernels."""
