"""The Triton kernels that vLLM and SGLang tune: their times, choices, and the files that they read."""
