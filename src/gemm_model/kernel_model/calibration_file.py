"""Calibrations: the empirical numbers of a kernel family on a GPU, with the error bands of held-out data.

`h200:quack` names the calibration in `config/calibration/h200/quack.yaml`. It holds the numbers of the family's
code; `silicon.yaml` beside it holds the card's numbers, which all families share. A pair of GPU and family
without a calibration borrows one in the order of `BORROWING`, and the prediction says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from gemm_model.config import CONFIG_DIR, gpu_names, is_yaml_file, mechanisms, read_yaml_mapping
from gemm_model.config.numbers import room_numbers
from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.gpu import ARCHITECTURES, GpuSpec, load_gpu
from gemm_model.core.heuristic_choice import Copying, EarlierKernel, HeuristicChoice
from gemm_model.core.records import record_from
from gemm_model.errors import InputError, require_one_of
from gemm_model.kernels.compiled_code import compiled_code
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.registry import families

FORMAT_VERSION = 4
AGAIN = "run gemm-model calibrate again"
"""What makes a calibration of an old form anew."""
CALIBRATION_DIR = CONFIG_DIR / "calibration"
BORROWED_BANDS = CONFIG_DIR / "calibration" / "borrowed_bands.yaml"
KNOWN_OF_FAMILIES = CONFIG_DIR / "calibration" / "known_of_families.yaml"
HEURISTIC_CHOICES = CONFIG_DIR / "calibration" / "heuristic_choices.yaml"
LAST_RESORT = "h200:quack"
"""Calibration that a pair borrows if none shares its family or architecture."""

PLAIN_SITUATIONS = ("tiny", "memory_bound", "few_waves", "many_waves")
SPLIT_SITUATION = "split_k"
WHOLE_SITUATIONS = (*PLAIN_SITUATIONS, SPLIT_SITUATION)
"""Situations of a plain product, each with its error band: a kernel of a few microseconds; bound by L2 or DRAM;
few waves; many waves; and split K, whatever the size."""
SITUATIONS = (*WHOLE_SITUATIONS, *mechanisms.PROBLEM_KINDS)
"""All situations, with kinds of problem beyond a plain product; a calibration without such rows has no band
for them."""
NEAREST_KINDS = ("fp16", "fp8", "tf32", "int8", "fp6", "fp4", "fp32")
"""Rate classes in the order in which they replace a class without numbers."""
SILICON_FILE = "silicon.yaml"
"""File of the card's numbers, beside the calibrations of its families."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SiliconFile:
    """What `silicon.yaml` holds."""

    version: int
    gpu: str
    fitted_to: Mapping[str, Any]
    numbers: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _File(_SiliconFile):
    """What the file of a calibration holds."""

    family: str
    architecture: str
    kinds: tuple[str, ...]
    error_band: Mapping[str, Mapping[str, float]]
    silicon: str | None = None
    timeline: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Numbers of timelines, on which no runtime depends; a file without them has their start values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A number in a file: one value for all rate classes, or one for each."""

    value: float | Mapping[str, float]
    unit: str
    source: str
    interval: float | Mapping[str, float] | None = None
    """90 % half-width of a fitted number."""
    measured: tuple[float, float] | None = None
    """The interval that direct measurements allow a card's number."""

    def of(self, kind: str, values: float | Mapping[str, float], place: str) -> float:
        """Its value or half-width in a rate class; raises InputError without one."""
        if not isinstance(values, Mapping):
            return values
        if kind not in values:
            raise InputError(f"{place}: no value for {kind}; expected one for each rate class")
        return values[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One calibration file; numbers and bands by rate class of the operand types."""

    gpu: str
    family: str
    architecture: str
    numbers: Mapping[str, mechanisms.KernelNumbers]
    intervals: Mapping[str, Mapping[str, float]]
    """90 % confidence half-width of each fitted number, by rate class."""
    sources: Mapping[str, str]
    """Origin of each number: the tables it was fitted to, or the source of a fixed one."""
    error_band: Mapping[str, Mapping[str, float]]
    """Relative error of 90 % of held-out rows, by rate class and situation; empty without such rows."""
    fitted_to: Mapping[str, Any]
    within_phases: mechanisms.WithinPhases
    """Numbers of timelines, for all rate classes."""
    silicon: str | None = None
    """The card whose `silicon.yaml` holds the card's numbers; None if this file holds them."""
    path: Path | None = None
    """File of this calibration."""

    @property
    def name(self) -> str:
        return f"{self.gpu}:{self.family}"

    @property
    def is_own_file(self) -> bool:
        """Whether its file is the user's, not one of the package."""
        return self.path is not None and not self.path.is_relative_to(CALIBRATION_DIR)

    @property
    def fitted(self) -> frozenset[str]:
        """Names of the numbers that were fitted in at least one rate class."""
        return frozenset(name for found in self.intervals.values() for name in found)

    def kind_for(self, math_kind: str) -> str:
        """The rate class whose numbers `math_kind` uses: its own, else the nearest fitted one."""
        if math_kind in self.numbers:
            return math_kind
        narrow_first = math_kind in ("fp8", "int8", "fp6", "fp4")
        order = reversed(tuple(self.numbers)) if narrow_first else iter(self.numbers)
        return next(order)

    def numbers_for(self, math_kind: str, family: KernelFamily) -> mechanisms.KernelNumbers:
        """The numbers that predict a family's kernels.

        If the calibration is of another family, `known_numbers` of the family replace the donor's.
        """
        served = self.kind_for(math_kind)
        numbers = self.numbers[served]
        if family.name != self.family:
            numbers = numbers.having(known_numbers(family, numbers, served))
        return numbers

    def numbers_on(self, gpu: GpuSpec, math_kind: str, family: KernelFamily) -> mechanisms.KernelNumbers:
        """`numbers_for` on a GPU: launches take as many SM clocks as on the calibration's card, or longer by what
        small kernels in a graph take where both cards' are known.

        A FLOP takes the energy that the card's description tells. On another architecture loads take as many more
        as DRAM answers later, where both latencies are known.
        """
        numbers = self.numbers_for(math_kind, family)
        if self.gpu == gpu.name or self.gpu not in gpu_names():
            return numbers
        donor = load_gpu(self.gpu)
        longer = (gpu.small_kernel_us or 0.0) / (donor.small_kernel_us or float("inf"))
        numbers = numbers.at_clock(longer or donor.sm_clk_mhz / gpu.sm_clk_mhz)
        if gpu.pj_per_flop is not None:
            of_type = numbers.power.pj_per_flop / self.numbers[self.kind_for("fp16")].power.pj_per_flop
            numbers = numbers.having({"power.pj_per_flop": gpu.pj_per_flop * of_type})
        own_ns, donor_ns = gpu.dram_latency_ns, donor.dram_latency_ns
        if own_ns is None or donor_ns is None or gpu.kernel_architecture == self.architecture:
            return numbers
        later_clk = (own_ns * gpu.sm_clk_mhz - donor_ns * donor.sm_clk_mhz) * 1e-3
        return numbers.having({"latency.load_clk": numbers.latency.load_clk + later_clk})

    def fingerprint(self) -> str:
        """Hash of all numbers that plain products depend on: it changes when one of them does.

        It covers numbers of the family's compiled code and numbers of all families.
        """
        values = {
            kind: {name: value for name, value in found.values().items() if not _is_of_kind(name)}
            for kind, found in self.numbers.items()
        }
        shared = [
            compiled_code(self.family).values(),
            vars(room_numbers("kernels")),
            vars(room_numbers("kernel_model")),
        ]
        text = json.dumps([self.gpu, self.family, values, *shared], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrowing:
    """One way to borrow a calibration for a pair without its own."""

    name: str
    """Its key in `borrowed_bands.yaml`."""
    same_gpu: bool
    same_family: bool
    same_architecture: bool

    def takes(self, calibration: Calibration, gpu: GpuSpec, family: str) -> bool:
        return (
            (not self.same_gpu or calibration.gpu == gpu.name)
            and (not self.same_family or calibration.family == family)
            and (not self.same_architecture or calibration.architecture == gpu.kernel_architecture)
        )


OWN = "own"
BORROWING = (
    Borrowing(name=OWN, same_gpu=True, same_family=True, same_architecture=True),
    Borrowing(name="other_gpu", same_gpu=False, same_family=True, same_architecture=True),
    Borrowing(name="other_family", same_gpu=True, same_family=False, same_architecture=True),
    Borrowing(name="other_gpu_and_family", same_gpu=False, same_family=False, same_architecture=True),
    Borrowing(name="other_architecture", same_gpu=False, same_family=True, same_architecture=False),
)
"""Order of the search for a calibration; `LAST_RESORT` follows."""


def calibration_for(gpu: GpuSpec, family: str) -> tuple[Calibration, str]:
    """The calibration of a family on a GPU, and the name of the way it is borrowed ('own' if it is not)."""
    known = [load_calibration(name) for name in calibration_names()]
    for borrowing in BORROWING:
        for calibration in known:
            if borrowing.takes(calibration, gpu, family):
                return calibration, borrowing.name
    return load_calibration(LAST_RESORT), BORROWING[-1].name


def how_borrowed(calibration: Calibration, gpu: GpuSpec, family: str) -> str:
    """The name of the first way of borrowing that takes this calibration for the pair."""
    ways = (each.name for each in BORROWING if each.takes(calibration, gpu, family))
    return next(ways, BORROWING[-1].name)


def borrowed_bands() -> Mapping[str, float]:
    """Relative error of 90 % of the measured rows that tried a way of borrowing, by its name."""
    return _bands_of("bands")


def regime_band(regime: str) -> float:
    """Relative error of 90 % of measured rows of a regime beyond the band of single launches, in squares [1]."""
    return _bands_of("regimes").get(regime, 0.0)


@cache
def _bands_of(group: str) -> Mapping[str, float]:
    entries = read_yaml_mapping(BORROWED_BANDS, "bands of borrowed calibrations")[group]
    return {name: float(found["band"]) for name, found in entries.items()}


@cache
def tables_of_picks(family: str) -> tuple[str, ...]:
    """Names of the tables of a library's calls to which its heuristic choice is fitted."""
    found = read_yaml_mapping(HEURISTIC_CHOICES, "what libraries pick by themselves")["heuristic_choices"]
    return tuple(found[family]["tables"])


@cache
def heuristic_choices() -> Mapping[str, HeuristicChoice]:
    """Time of a library's heuristic choice over that of its fastest kernel, by library."""
    found = read_yaml_mapping(HEURISTIC_CHOICES, "what libraries pick by themselves")["heuristic_choices"]
    return {
        name: HeuristicChoice(
            share=float(entry["share"]),
            half_us=float(entry.get("half_us", math.inf)),
            choice_band=float(entry.get("choice_band", 0.0)),
            chosen_on=entry.get("chosen_on", {}),
            shares=entry.get("shares", {}),
            copying={way: Copying(**found) for way, found in entry.get("copying", {}).items()},
            earlier={kernel: EarlierKernel(**found) for kernel, found in entry.get("earlier", {}).items()},
        )
        for name, entry in found.items()
    }


@cache
def _known_of_families() -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = read_yaml_mapping(
        KNOWN_OF_FAMILIES, "what is known of families"
    )["known_of_families"]
    return found


def known_numbers(family: KernelFamily, donor: mechanisms.KernelNumbers, kind: str) -> Mapping[str, float]:
    """Numbers of a family's kernels known without timing its GEMMs, by full name, for a rate class.

    An entry gives a value, or the difference from the donor's value; it holds for all rate classes and
    architectures of the family, or for those that it names.
    """
    found = _known_of_families().get(family.name, {"architectures": (), "numbers": {}})
    of_donor = donor.values()
    return {
        name: mechanisms.checked(
            mechanisms.NUMBERS[name], of_donor[name] + entry["more"] if "more" in entry else entry["value"]
        )
        for name, entry in found["numbers"].items()
        if kind in entry.get("classes", (kind,))
        and not set(family.architectures).isdisjoint(entry.get("architectures", found["architectures"]))
    }


def load_calibration(name_or_path: str | Path) -> Calibration:
    """A calibration of the package by its name (`h200:quack`, or `h200`), or a YAML file of `calibrate`."""
    text = str(name_or_path)
    if is_yaml_file(text):
        return _from_mapping(read_yaml_mapping(Path(text), "a calibration"), text, Path(text))
    name = text if ":" in text else f"{text}:quack"
    if name not in calibration_names():
        known = ", ".join(calibration_names())
        raise InputError(f"unknown calibration {text!r}; expected a YAML file or one of {known}")
    return _packaged(name)


@cache
def calibration_names() -> tuple[str, ...]:
    """Names of the shipped calibrations, such as `h200:quack`; the last resort first."""
    files = sorted(path for path in CALIBRATION_DIR.glob("*/*.yaml") if path.name != SILICON_FILE)
    found = [f"{path.parent.name}:{path.stem}" for path in files]
    return tuple(sorted(found, key=lambda name: (name != LAST_RESORT, name)))


@lru_cache(maxsize=64)
def _packaged(name: str) -> Calibration:
    gpu, _, family = name.partition(":")
    path = CALIBRATION_DIR / gpu / f"{family}.yaml"
    return _from_mapping(read_yaml_mapping(path, "a calibration"), f"{gpu}/{path.name}", path)


def _from_mapping(values: Mapping[str, Any], where_from: str, path: Path) -> Calibration:
    version = values.get("version")
    if version != FORMAT_VERSION:
        raise InputError(
            f"{where_from}: calibration of format version {version!r}; expected {FORMAT_VERSION}: {AGAIN}"
        )
    try:
        file = record_from(_File, values, where_from)
    except InputError as error:
        raise InputError(f"{error}; {AGAIN}") from None
    for key, known in (("family", families()), ("architecture", ARCHITECTURES)):
        require_one_of(f"{where_from}: {key} {getattr(file, key)!r}", getattr(file, key), known)
    entries = file.numbers
    if file.silicon is not None:
        entries = {**silicon_entries(file.silicon, where_from), **entries}
    numbers, intervals, sources = _numbers(entries, _kinds(file.kinds, where_from), where_from)
    return Calibration(
        gpu=file.gpu,
        family=file.family,
        architecture=file.architecture,
        numbers=numbers,
        intervals=intervals,
        sources=sources,
        error_band=_bands(file.error_band, where_from),
        fitted_to=file.fitted_to,
        within_phases=_within_phases(file.timeline, f"{where_from}, timeline"),
        silicon=file.silicon,
        path=path,
    )


def silicon_entries(gpu: object, where_from: str) -> Mapping[str, Any]:
    """Entries of a card's numbers; raises InputError if the card has no such file."""
    path = CALIBRATION_DIR / str(gpu) / SILICON_FILE
    if not path.is_file():
        known = ", ".join(sorted(found.parent.name for found in CALIBRATION_DIR.glob(f"*/{SILICON_FILE}")))
        raise InputError(f"{where_from}: silicon {gpu!r}; expected one of {known}")
    return _silicon(path, path.stat().st_mtime_ns)


def measured_bounds(gpu: str) -> dict[str, tuple[float, float]]:
    """Intervals that direct measurements allow numbers of a card, by number; errors as `silicon_entries`."""
    entries = silicon_entries(gpu, gpu)
    return {name: tuple(entry["measured"]) for name, entry in entries.items() if "measured" in entry}


@lru_cache(maxsize=16)
def _silicon(path: Path, _modified: int) -> Mapping[str, Any]:
    """Entries of a card's numbers, read again once the file has changed."""
    values = read_yaml_mapping(path, "the numbers of a card")
    entries = record_from(_SiliconFile, values, str(path)).numbers
    if missing := [name for name in mechanisms.SILICON_NUMBERS if name not in entries]:
        raise InputError(f"{path}: numbers of the card are missing: {', '.join(missing)}")
    if foreign := [name for name in entries if name not in mechanisms.SILICON_NUMBERS]:
        raise InputError(
            f"{path}: {', '.join(foreign)} belong to no card; expected {', '.join(mechanisms.SILICON_NUMBERS)}"
        )
    return entries


def _is_of_kind(name: str) -> bool:
    """Whether a number belongs to a kind of problem beyond a plain product."""
    return name.partition(".")[0] in mechanisms.KIND_MECHANISMS


_KIND_STARTS = {name: value for name, value in mechanisms.start_values().items() if _is_of_kind(name)}
"""Values of these numbers in a calibration without them."""


def _numbers(
    found: Mapping[str, Any], kinds: Sequence[str], where_from: str
) -> tuple[dict[str, mechanisms.KernelNumbers], dict[str, dict[str, float]], dict[str, str]]:
    """Records and half-widths by rate class, and sources, from the files' entries."""
    values: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    intervals: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    sources: dict[str, str] = {}
    for name, given in found.items():
        place = f"{where_from}, {name}"
        if name not in mechanisms.NUMBERS:
            raise InputError(f"{place}: unknown number, as in calibrations of an old form: {AGAIN}")
        entry = _entry_of(given, mechanisms.NUMBERS[name].unit, place)
        width = entry.interval
        for kind in kinds:
            values[kind][name] = entry.of(kind, entry.value, place)
            if width is not None and not (isinstance(width, Mapping) and kind not in width):
                intervals[kind][name] = entry.of(kind, width, place)
        sources[name] = entry.source
    records = {}
    for kind in kinds:
        held = {**_KIND_STARTS, **values[kind]}
        if missing := [name for name in mechanisms.NUMBERS if name not in held]:
            said = f"number{'s' * (len(missing) > 1)} {', '.join(missing)}"
            raise InputError(
                f"{where_from}, {kind}: {said} missing, as in calibrations of an old form: {AGAIN}"
            )
        try:
            records[kind] = mechanisms.kernel_numbers(held)
        except InputError as error:
            raise InputError(f"{where_from}, {kind}: {error}") from None
    return records, {kind: widths for kind, widths in intervals.items() if widths}, sources


def _within_phases(found: Mapping[str, Mapping[str, Any]], where_from: str) -> mechanisms.WithinPhases:
    """The record of timelines from the file's entries."""
    values: dict[str, Any] = {}
    for name, given in found.items():
        require_one_of(f"{where_from}: unknown number {name!r}", name, mechanisms.WITHIN_PHASES)
        values[name] = _entry_of(given, mechanisms.WITHIN_PHASES[name].unit, f"{where_from}.{name}").value
    try:
        return mechanisms.within_phases(values)
    except InputError as error:
        raise InputError(f"{where_from}: {error}") from None


def _kinds(found: Sequence[str], where_from: str) -> list[str]:
    """The rate classes of a file, in the order of NEAREST_KINDS."""
    if not found:
        raise InputError(f"{where_from}: kinds is []; expected some of {', '.join(MATH_KINDS)}")
    _require_rate_classes(found, where_from)
    return [kind for kind in NEAREST_KINDS if kind in found]


def _require_rate_classes(found: Iterable[str], where_from: str) -> None:
    for kind in found:
        require_one_of(f"{where_from}: rate class {kind!r}", kind, MATH_KINDS)


def _entry_of(given: Mapping[str, Any], unit: str, place: str) -> _Entry:
    """The record of a number; raises InputError for another unit, an unknown rate class or a negative width."""
    entry = record_from(_Entry, given, place)
    if entry.unit != unit:
        raise InputError(f"{place}: unit {entry.unit!r}; expected {unit!r}")
    for each in (entry.value, entry.interval):
        _require_rate_classes(each if isinstance(each, Mapping) else (), place)
    width = entry.interval or 0.0
    if min(width.values() if isinstance(width, Mapping) else (width,), default=0.0) < 0.0:
        raise InputError(f"{place}: interval {given['interval']!r}; expected a half-width of 0 or more")
    return entry


def _bands(found: Mapping[str, Mapping[str, float]], where_from: str) -> dict[str, dict[str, float]]:
    """Error bands [1] by rate class and situation."""
    _require_rate_classes(found, where_from)
    for kind, bands in found.items():
        if not has_bands(bands) or not all(0.0 <= value < 10.0 for value in bands.values()):
            raise InputError(
                f"{where_from}: error_band of {kind} is {bands!r}; expected a share for each of "
                f"{', '.join(WHOLE_SITUATIONS)}"
            )
    return {kind: dict(bands) for kind, bands in found.items()}


def has_bands(found: object) -> bool:
    """Whether a mapping has a band for each of WHOLE_SITUATIONS, and for no unknown one."""
    return isinstance(found, Mapping) and set(WHOLE_SITUATIONS) <= set(found) <= set(SITUATIONS)


def as_mapping(calibration: Calibration) -> dict[str, Any]:
    """The mapping that a calibration's file holds, with the card's numbers if no `silicon.yaml` holds them."""
    held = [
        name
        for name in mechanisms.NUMBERS
        if calibration.silicon is None or name not in mechanisms.SILICON_NUMBERS
    ]
    return {
        "version": FORMAT_VERSION,
        "gpu": calibration.gpu,
        "family": calibration.family,
        "architecture": calibration.architecture,
        **({} if calibration.silicon is None else {"silicon": calibration.silicon}),
        "kinds": list(calibration.numbers),
        "fitted_to": dict(calibration.fitted_to),
        "error_band": {kind: dict(bands) for kind, bands in calibration.error_band.items()},
        "numbers": {name: _entry(calibration, name) for name in held},
        "timeline": {
            name: {
                "value": getattr(calibration.within_phases, name),
                "unit": spec.unit,
                "source": spec.source,
            }
            for name, spec in mechanisms.WITHIN_PHASES.items()
        },
    }


def _entry(calibration: Calibration, name: str) -> dict[str, Any]:
    values = {kind: found.values()[name] for kind, found in calibration.numbers.items()}
    widths = {kind: found[name] for kind, found in calibration.intervals.items() if name in found}
    entry = {
        "value": next(iter(values.values())) if len(set(values.values())) == 1 else values,
        "unit": mechanisms.NUMBERS[name].unit,
    }
    if widths:
        alike = len(set(widths.values())) == 1 and len(widths) == len(values)
        entry["interval"] = next(iter(widths.values())) if alike else widths
    return {**entry, "source": calibration.sources.get(name, mechanisms.NUMBERS[name].source)}
