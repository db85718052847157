"""Try the package as a user gets it: `try_package.py wheel`, `oldest` or `release`.

wheel: builds the sdist and from it the wheel, installs the wheel into an empty environment, and runs every
verb in an empty folder: it works, or says which extra it needs. release: leaves sdist, wheel and a list of
all that the wheel comes with (SBOM, CycloneDX) in dist/. oldest: installs the lower bound of every dependency
in pyproject.toml and runs the tests of the core.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = {
    "shapes.csv": "m,n,k\n512,7168,2048\n16,512,512\n",
    "measured.csv": "in_dtype,m,n,k,cta_m,cta_n,cluster_m,cluster_n,runtime_us\n"
    "bf16,4096,4096,4096,128,256,2,1,200.0\n",
    "problems.json": '[{"m": 512, "n": 512, "k": 512, "layout": "tnn", "dtype_a": "f16", "dtype_b": "f16", '
    '"dtype_d": "f16"}]',
    "config.json": '{"hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 1000}',
}
"""What the commands read."""
COMMANDS = (
    "--version",
    "predict --m 4096 --n 4096 --k 4096 --dtype fp8 --cta 128x256 --cluster 2x1",
    "predict --input measured.csv --output results",
    "explain --m 512 --n 7168 --k 2048 --cta 128x128",
    "rank --m 512 --n 7168 --k 2048 --emit triton --family triton",
    "portfolio --input shapes.csv --max-kernels 2",
    "model config.json --batch 8 --context 512",
    "serve-configs --models list --tp 8 --device NVIDIA_A10 --framework vllm --output configs",
    "plan --budget 90s --input shapes.csv --output plan.csv",
    "cutlass-profiler --problems problems.json --output testlist.csv",
    "simulate --m 512 --n 512 --k 512 --cta 128x128 --trace timeline.json",
    "solve --m 512 --n 512 --k 512 --machine tiny_buffer",
    "overlap --m 8192 --k 8192 --n 16 --dtype e4m3 --tune",
    "hierarchy --gpu h200 --tile cta:128x128 --tile thread:8x8",
    "list gpus",
    "completion bash",
    # These two read tables of hundreds of measurements: that they start is all that is tried here.
    "calibrate --help",
    "estimate --help",
)
"""Work with the wheel alone."""
NEED_PLOT = (
    "explore --m 512 --n 7168 --k 2048 --html page.html",
    "simulate --m 512 --n 512 --k 512 --cta 128x128 --plot timeline.png",
)
NEED_AN_EXTRA = (
    *NEED_PLOT,
    "torch model.py:build",
    "emit aiconfigurator --memory-gib 141 --output systems --input shapes.csv",
    "benchmark --input shapes.csv --output rows.csv",
    "characterize --output card.yaml",
    "trace --m 512 --n 512 --k 512 --cta 128x128 --output traces.csv.gz",
    "data import mine measured.csv",
    "solve --m 512 --n 512 --k 512 --machine tiny_buffer --method smt",
)
"""End with exit code 3 and say what is missing."""
MISSING_EXTRA = 3
LARGEST_WHEEL_MB = 5.0
OLDEST_TESTS = ("core", "classic_models", "kernels", "commands", "report/test_page.py")
TEST_TOOLS = ("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "jsonschema>=4.20")


def environment(folder: Path, *packages: str) -> Path:
    """A new virtual environment with some packages; returns its folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    run(str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return programs


def clean_environment() -> dict[str, str]:
    """Variables by which nothing of the repository is found by chance."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*words: str, cwd: Path = ROOT) -> None:
    subprocess.run(words, cwd=cwd, env=clean_environment(), check=True)


def built(work: Path) -> tuple[Path, Path]:
    """The wheel, built from the sdist, and the folder of the tools that a release needs."""
    tools = environment(work / "tools", "build", "cyclonedx-bom", "twine", "uv")
    run(str(tools / "python"), "-m", "build", "--outdir", str(work / "dist"), str(ROOT))
    run(str(tools / "twine"), "check", "--strict", *map(str, (work / "dist").iterdir()))
    (wheel,) = (work / "dist").glob("*.whl")
    return wheel, tools


def try_wheel(work: Path) -> None:
    wheel, tools = built(work)
    size_mb = wheel.stat().st_size / 1e6
    if size_mb > LARGEST_WHEEL_MB:
        sys.exit(f"{wheel.name} has {size_mb:.2f} MB; expected at most {LARGEST_WHEEL_MB}")
    empty = work / "empty"
    empty.mkdir()
    for name, text in FILES.items():
        (empty / name).write_text(text, encoding="utf-8")
    programs = environment(work / "installed", str(wheel))
    command = str(programs / "gemm-model")
    for words in COMMANDS:
        run(command, *words.split(), cwd=empty)
    for words in NEED_AN_EXTRA:
        done = subprocess.run([command, *words.split()], cwd=empty, env=clean_environment(), check=False)
        if done.returncode != MISSING_EXTRA:
            sys.exit(f"gemm-model {words}: exit code {done.returncode}; expected {MISSING_EXTRA}")
    run(str(programs / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[plot]")
    for words in NEED_PLOT:
        run(command, *words.split(), cwd=empty)
    run(str(tools / "uvx"), "--from", str(wheel), "gemm-model", *COMMANDS[1].split())
    print(f"{wheel.name}: {size_mb:.2f} MB, {len(COMMANDS) + len(NEED_AN_EXTRA)} commands tried")


def write_release(work: Path) -> None:
    """Write what the wheel comes with into dist/, next to sdist and wheel."""
    wheel, tools = built(work)
    programs = environment(work / "installed", str(wheel))
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    for path in (work / "dist").iterdir():
        shutil.copy(path, dist)
    run(
        *(str(tools / "cyclonedx-py"), "environment", "--output-format", "JSON"),
        *("--output-file", str(dist / "gemm-model.cdx.json"), str(programs / "python")),
    )


def lower_bounds() -> list[str]:
    """`name==bound` for each dependency of the package and of the extra `plot`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["plot"]):
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
    tries = {"wheel": try_wheel, "oldest": try_oldest, "release": write_release}
    if sys.argv[1:] not in ([name] for name in tries):
        sys.exit("usage: try_package.py wheel|oldest|release")
    with tempfile.TemporaryDirectory(prefix="gemm-model-") as work:
        tries[sys.argv[1]](Path(work))


if __name__ == "__main__":
    main()
