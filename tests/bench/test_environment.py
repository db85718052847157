"""What a run writes about itself."""

import sys

from gemm_model.bench.row_log import command_line


def test_the_command_keeps_no_directory_of_the_machine(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/a/bin/gemm-model", "benchmark", "--output", "/b/c/t.csv", "x/y.csv"])
    assert command_line() == "gemm-model benchmark --output t.csv x/y.csv"
