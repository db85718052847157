"""Pack the wheels of an extra into parts of a given size, for a machine without a network.

    python scripts/pack_wheels.py --extra bench --python 3.12 --part-mb 60 --output packed

fetches this project's wheel and everything that the extra needs with pip, and writes `part-000`,
`part-001`, ..., a list of checksums and `install.py`. Carry them over in any number of trips into one
folder, then run there

    python install.py --extra bench            (or with --target FOLDER, to be put on PYTHONPATH)

which needs nothing but Python and pip: it checks every part, joins them and installs without an index.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
MANYLINUX_MINORS = (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
MANYLINUX = tuple(f"manylinux_2_{minor}_x86_64" for minor in MANYLINUX_MINORS)
MEGABYTE = 10**6

INSTALLER = '''"""Check the parts beside this file, join them, install their wheels without an index."""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", default="", help="extra of gemm-model to install")
    parser.add_argument("--target", help="install into this folder instead of the environment")
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parent
    manifest = json.loads((here / "parts.json").read_text())
    for name, digest in manifest.items():
        part = here / name
        if not part.exists():
            print(f"{part}: missing; expected {len(manifest)} parts here", file=sys.stderr)
            return 2
        if hashlib.sha256(part.read_bytes()).hexdigest() != digest:
            print(f"{part}: damaged; copy it again", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        joined = Path(folder) / "wheels.tar"
        with joined.open("wb") as whole:
            for name in manifest:
                whole.write((here / name).read_bytes())
        with tarfile.open(joined) as archive:
            # Python before 3.11.4 has no filters; the archive is ours and its parts were checked.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)
        joined.unlink()
        wanted = "gemm-model" + (f"[{arguments.extra}]" if arguments.extra else "")
        options = ["--no-index", "--find-links", folder]
        if arguments.target:
            options += ["--target", arguments.target, "--upgrade"]
        return subprocess.call([sys.executable, "-m", "pip", "install", *options, wanted])


if __name__ == "__main__":
    sys.exit(main())
'''


def fetch_wheels(extra: str, python: str, skip: Sequence[str], folder: Path) -> None:
    """The project's wheel and what it needs, into `folder`, for x86-64 Linux and the given Python."""
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(PROJECT)], check=True)
    (own,) = folder.glob("gemm_model-*.whl")
    options = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for platform in MANYLINUX:
        options += ["--platform", platform]
    wanted = f"{own}[{extra}]" if extra else str(own)
    subprocess.run([*pip, "download", *options, "--dest", str(folder), wanted], check=True)
    for name in skip:
        for wheel in folder.glob(f"{name.replace('-', '_')}-*.whl"):
            wheel.unlink()


def split_into_parts(wheels: Sequence[Path], output: Path, part_bytes: int) -> list[Path]:
    """The wheels as one archive, cut into parts, with their checksums and the installer beside them."""
    output.mkdir(parents=True, exist_ok=True)
    parts: list[Path] = []
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            for wheel in sorted(wheels):
                archive.add(wheel, arcname=wheel.name)
        whole.seek(0)
        while data := whole.read(part_bytes):
            part = output / f"part-{len(parts):03d}"
            part.write_bytes(data)
            parts.append(part)
    digests = {part.name: hashlib.sha256(part.read_bytes()).hexdigest() for part in parts}
    (output / "parts.json").write_text(json.dumps(digests, indent=1) + "\n")
    (output / "install.py").write_text(INSTALLER)
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--extra", default="bench", help="extra to pack; empty for the package alone")
    parser.add_argument("--python", default="3.12", help="Python version of the other machine")
    parser.add_argument("--skip", nargs="*", default=[], help="packages that the other machine has")
    parser.add_argument("--part-mb", type=int, default=60, help="size of a part in megabytes")
    parser.add_argument("--output", type=Path, required=True, help="folder for the parts")
    arguments = parser.parse_args()
    if arguments.part_mb < 1:
        print(f"--part-mb is {arguments.part_mb}; expected a positive whole number", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        fetch_wheels(arguments.extra, arguments.python, arguments.skip, Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        parts = split_into_parts(wheels, arguments.output, arguments.part_mb * MEGABYTE)
    print(f"{arguments.output}: {len(wheels)} wheels in {len(parts)} parts, and install.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
