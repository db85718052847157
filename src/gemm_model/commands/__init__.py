"""The verbs of the command `gemm-model`: one module each, with `add_arguments(parser)` and `run(args)`."""
