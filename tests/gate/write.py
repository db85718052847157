"""Record the golden table, fitted rows, counts of kernels and accuracy figures: `make golden`; then read the diff."""

from tests.gate.accuracy import write_accuracy, write_page
from tests.gate.fitted_rows import write_fitted_rows
from tests.gate.golden import write_golden
from tests.gate.numbers import write_numbers
from tests.gate.spaces import write_spaces

if __name__ == "__main__":
    write_golden()
    write_fitted_rows()
    write_spaces()
    write_accuracy()
    write_page()
    write_numbers()
