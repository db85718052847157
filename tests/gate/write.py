"""Record the golden table and the accuracy figures: `make golden`; read the diff before it is committed."""

from tests.gate.accuracy import write_accuracy
from tests.gate.golden import write_golden

if __name__ == "__main__":
    write_golden()
    write_accuracy()
