"""Unit and valid range of a number in a GPU description or a file of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Unit and range of a number. A value outside the range is a typing error or has another unit."""

    unit: str
    low: float
    high: float
    whole: bool = False
    optional: bool = False

    def require(self, where: str, name: str, value: object) -> None:
        """Raises InputError unless `value` is such a number, or None where that is allowed."""
        if value is None and self.optional:
            return
        number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high:  # type: ignore[operator]
            kind = "a whole number" if self.whole else "a number"
            expected = f"{kind} of {self.unit} from {self.low:.10g} to {self.high:.10g}"
            raise InputError(f"{where}: {name} is {value!r}; expected {expected}")
