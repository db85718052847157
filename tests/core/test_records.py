"""Records: the quick way to make one gives what its class gives."""

from dataclasses import dataclass

import pytest

from gemm_model.core.records import constructor


@dataclass(slots=True)
class Two:
    """A record with a default."""

    first: float
    second: str = "none"


def test_a_constructor_makes_what_the_class_makes():
    made = constructor(Two)
    assert made(first=1.5, second="some") == Two(1.5, "some")
    assert made(second="some", first=1.5) == made(1.5, "some") == Two(1.5, "some")
    assert made(first=2.0) == Two(2.0, "none")
    assert type(made(first=2.0)) is Two


@pytest.mark.parametrize("wrong", [{}, {"second": "some"}, {"first": 1.0, "third": 2.0}])
def test_it_refuses_what_the_class_refuses(wrong):
    for make in (Two, constructor(Two)):
        with pytest.raises(TypeError):
            make(**wrong)
