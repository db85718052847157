"""The project's own fp32 GEMM kernels on the CUDA cores, rung by rung, and their benchmark provider."""
