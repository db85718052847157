"""Try the package as a user gets it: `try_package.py wheel` or `try_package.py oldest`.

wheel: builds the sdist and from it the wheel, installs the wheel into an empty environment, and runs its
command in an empty folder. oldest: installs the lower bound of every dependency in pyproject.toml and runs
the tests of the core.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = (
    "--version",
    "predict --m 4096 --n 4096 --k 4096 --dtype fp8 --cta 128x256 --cluster 2x1",
    "explain --m 512 --n 7168 --k 2048 --cta 128x128",
    "rank --m 512 --n 7168 --k 2048 --emit triton --family triton",
    "explore --m 512 --n 7168 --k 2048 --html page.html",
    "simulate --m 512 --n 512 --k 512 --cta 128x128 --html timeline.html",
)
OLDEST_TESTS = ("core", "classic_models", "kernels", "commands", "report/test_page.py")
TEST_TOOLS = ("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "jsonschema>=4.20")


def environment(folder: Path, *packages: str) -> Path:
    """A new virtual environment with some packages; returns its folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    run(str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return programs


def run(*words: str, cwd: Path = ROOT) -> None:
    # Nothing of the repository may be found by chance.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(words, cwd=cwd, env=clean, check=True)


def try_wheel(work: Path) -> None:
    builder = environment(work / "builder", "build")
    run(str(builder / "python"), "-m", "build", "--outdir", str(work / "dist"), str(ROOT))
    (wheel,) = (work / "dist").glob("*.whl")
    programs = environment(work / "installed", f"{wheel}[page]")
    (work / "empty").mkdir()
    for command in COMMANDS:
        run(str(programs / "gemm-model"), *command.split(), cwd=work / "empty")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, {len(COMMANDS)} commands ran")


def lower_bounds() -> list[str]:
    """`name==bound` for each dependency of the package and of the extra `page`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["page"]):
        name, bound = re.fullmatch(r"([\w.-]+)>=([\d.]+).*", requirement).groups()  # type: ignore[union-attr]
        found.append(f"{name}=={bound}")
    return found


def try_oldest(work: Path) -> None:
    bounds = lower_bounds()
    programs = environment(work / "oldest", *bounds, *TEST_TOOLS)
    run(str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--editable", str(ROOT))
    run(str(programs / "python"), "-m", "pip", "check")
    run(str(programs / "python"), "-m", "pytest", "-n", "2", *(f"tests/{name}" for name in OLDEST_TESTS))
    print("ran with", ", ".join(bounds))


def main() -> None:
    tries = {"wheel": try_wheel, "oldest": try_oldest}
    if sys.argv[1:] not in ([name] for name in tries):
        sys.exit("usage: try_package.py wheel|oldest")
    with tempfile.TemporaryDirectory(prefix="gemm-model-") as work:
        tries[sys.argv[1]](Path(work))


if __name__ == "__main__":
    main()
