"""Classic entry point: python benchmark_gemm.py --input_csv=SIZES --dtype=fp8 --output_csv=TABLE.

The same as `gemm-model benchmark`, which takes the same options and more.
"""

import argparse
import sys

from gemm_model.cli import run_and_report
from gemm_model.commands import benchmark


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmark_gemm.py", description=benchmark.__doc__)
    benchmark.add_arguments(parser)
    return run_and_report(lambda: benchmark.run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
