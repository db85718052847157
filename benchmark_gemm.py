"""Classic entry point: python benchmark_gemm.py --input_csv=SIZES --dtype=fp8 --output_csv=TABLE.

The same as `gemm-model benchmark`, which takes the same options and more.
"""

import sys

from gemm_model.classic_scripts import benchmark_main

if __name__ == "__main__":
    sys.exit(benchmark_main(sys.argv[1:]))
