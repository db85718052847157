"""The verbs of the command `gemm-model`: one module each, with `run(args)`."""
