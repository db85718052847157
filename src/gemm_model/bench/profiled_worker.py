"""The worker that runs under the profiler: it launches the rows of a file and notes each reply."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gemm_model.bench.worker import Worker, serve


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, help="module:class of the device")
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--replies", type=Path, required=True)
    arguments = parser.parse_args()
    with arguments.requests.open() as requests, arguments.replies.open("w") as replies:
        return serve(Worker(arguments.device), requests, replies)


if __name__ == "__main__":
    sys.exit(main())
