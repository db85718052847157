"""Record the golden table, counts of kernels and accuracy figures: `make golden`; then read the diff."""

from tests.gate.accuracy import write_accuracy, write_page
from tests.gate.golden import write_golden
from tests.gate.numbers import write_numbers
from tests.gate.spaces import write_spaces

if __name__ == "__main__":
    write_golden()
    write_spaces()
    write_accuracy()
    write_page()
    write_numbers()
