"""Benchmark of real GEMM kernels: what to run, how it is timed, and how nothing measured is lost."""
