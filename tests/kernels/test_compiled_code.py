"""What compilers make of registers that spill: read from data; a wrong file is refused in a sentence."""

import copy
from dataclasses import replace
from functools import reduce
from operator import getitem

import pytest
import yaml

from gemm_model.core.errors import InputError
from gemm_model.kernels.compiled_code import COMPILED_CODE, compiled_code, load_compiled_code
from tests.cases import cases
from tests.typed_numbers import calibration

SHIPPED = yaml.safe_load(COMPILED_CODE.read_text())


def test_quack_has_counts_of_its_own_and_others_have_those_of_nvcc():
    quack = compiled_code("quack")
    assert quack.tiles() == [
        (256, 256, 137, 18),
        (288, 96, 99, 3),
        (320, 160, 162, 7),
        (384, 128, 202, 24),
        (384, 192, 218, 53),
        (400, 80, 203, 7),
        (416, 208, 247, 76),
    ]
    assert (quack.waits["others"], quack.working_registers) == (2, 30)
    assert (quack.split_waits, quack.beside_drain_clk) == (3, 28)
    for family in ("cutlass", "cublas", "triton"):
        assert compiled_code(family).tiles() == []
        assert (compiled_code(family).waits, compiled_code(family).working_registers) == ({"others": 3}, 30)
        # What is not told of a family is no part of its calibrations' fingerprints.
        assert set(compiled_code(family).values()) == {"working_registers", "moved_registers", "waits"}


@pytest.mark.parametrize(*cases(__file__, "test_a_wrong_file_is_refused_in_a_sentence"))
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path, changes, said):
    """Each change puts a value in place of another one; null leaves it out."""
    found = copy.deepcopy(SHIPPED)
    for place, value in changes.items():
        *folders, name = place.split("/")
        of = reduce(getitem, folders, found["compiled_code"])
        of.pop(name, None)
        of |= {} if value is None else {name: value}
    path = tmp_path / "compiled_code.yaml"
    path.write_text(yaml.safe_dump(found))
    with pytest.raises(InputError, match=said) as refused:
        load_compiled_code(path)
    assert "\n" not in str(refused.value)


def test_another_count_gives_a_calibration_another_fingerprint(monkeypatch):
    before = calibration().fingerprint()
    known = compiled_code("quack")
    others = replace(known, waits={**known.waits, "others": 2.5})
    monkeypatch.setattr("gemm_model.kernel_model.calibration_file.compiled_code", lambda _family: others)
    assert calibration().fingerprint() != before
