"""Fit shipped calibrations anew, each to the tables that it says it was fitted to.

python scripts/refit.py [GPU:FAMILY ...] [--reports FOLDER]

Donors come first: a calibration that starts from another one starts from its new values. Each file is
replaced when its fit has ended, so an interrupted run leaves whole ones. What held-out shapes say goes to
FOLDER/<gpu>-<family>.txt. The trees of cuDNN's heuristic choices follow its calibration.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
CALIBRATIONS = ROOT / "src" / "gemm_model" / "config" / "calibration"
MEASUREMENTS = ROOT / "data" / "measurements"
RESIDUAL = ".residual.npz"
PICKS = ".picks.npz"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How one shipped calibration came to be."""

    gpu: str
    family: str
    tables: tuple[str, ...]
    extended_to: tuple[str, ...]
    donor: str | None
    with_residual: bool

    @property
    def name(self) -> str:
        return f"{self.gpu}:{self.family}"

    @property
    def path(self) -> Path:
        return CALIBRATIONS / self.gpu / f"{self.family}.yaml"

    def words(self, output: Path) -> list[list[str]]:
        """Of the commands that write it to `output`, in order."""
        start = ["--from", self.donor] if self.donor else []
        residual = "auto" if self.with_residual else "off"
        whole = [*self._inputs(self.tables), "--family", self.family, *start, "--residual", residual]
        commands = [[*whole, "--hold-outs", "shapes"]]
        if self.extended_to:
            commands.append([*self._inputs(self.extended_to), "--extend", str(output)])
        return [[*words, "--gpu", self.gpu, "--output", str(output)] for words in commands]

    def _inputs(self, tables: tuple[str, ...]) -> list[str]:
        return [word for table in tables for word in ("--input", str(MEASUREMENTS / self.gpu / table))]


def shipped() -> dict[str, Fit]:
    """The shipped calibrations by name, donors first."""
    fits = {}
    for path in sorted(CALIBRATIONS.glob("*/*.yaml")):
        said = yaml.safe_load(path.read_text())
        name, origin = f"{said['gpu']}:{said['family']}", said["fitted_to"]
        fits[name] = Fit(
            gpu=said["gpu"],
            family=said["family"],
            tables=tuple(origin["tables"]),
            extended_to=tuple(origin.get("extended_to", {}).get("tables", ())),
            donor=None if origin["donor"] == name else origin["donor"],
            with_residual=path.with_suffix(RESIDUAL).is_file(),
        )
    order = TopologicalSorter({name: {fit.donor} - {None} for name, fit in fits.items()}).static_order()
    return {name: fits[name] for name in order}


def refit(fit: Fit, reports: Path) -> None:
    """Fit one of them anew and put it, with its residual, in place of the shipped one."""
    found = reports / f"{fit.gpu}-{fit.family}.yaml"
    with found.with_suffix(".txt").open("w") as report:
        for words in fit.words(found):
            command = [sys.executable, "-m", "gemm_model.cli", "calibrate", *words]
            subprocess.run(command, check=True, stdout=report)
    if fit.with_residual:
        found.with_suffix(RESIDUAL).replace(fit.path.with_suffix(RESIDUAL))
    found.replace(fit.path)
    if fit.path.with_suffix(PICKS).is_file():
        subprocess.run([sys.executable, str(ROOT / "scripts" / "fit_picks.py")], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="GPU:FAMILY", help="default: all that are shipped")
    parser.add_argument("--reports", type=Path, default=ROOT / "build" / "refit")
    args = parser.parse_args()
    fits = shipped()
    if unknown := [name for name in args.names if name not in fits]:
        parser.error(f"no calibration {unknown[0]!r} is shipped; expected of {', '.join(fits)}")
    args.reports.mkdir(parents=True, exist_ok=True)
    for name, fit in fits.items():
        if args.names and name not in args.names:
            continue
        refit(fit, args.reports)
    return 0


if __name__ == "__main__":
    sys.exit(main())
