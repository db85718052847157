"""The classic entry point: `python predict_gemm.py +input_csv=... +output_dir=... [model=...] [gpu=...]`.

Does what `gemm-model predict` does, with the classic defaults: GPU b200, model WSPersistentGEMMModel.
"""

import sys

from gemm_model.classic_scripts import predict_main

if __name__ == "__main__":
    sys.exit(predict_main(sys.argv[1:]))
