"""Fitting the kernel model's physical parameters to measurements, and judging the fit on held-out ones."""
