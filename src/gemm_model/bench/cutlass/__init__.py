"""Kernels of CUTLASS 3's collective builder: our own source, built by nvcc against CUTLASS's headers."""
