import subprocess
import sys
import zipfile

import pytest

from scripts import pack_wheels


def small_wheel(folder):
    """A wheel called gemm-model that holds one module and no dependencies."""
    path = folder / "gemm_model-9.9-py3-none-any.whl"
    info = "gemm_model-9.9.dist-info"
    files = {
        "packed_module.py": "ANSWER = 42\n" + "# filling\n" * 500,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: gemm-model\nVersion: 9.9\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


def install(folder, target):
    command = [sys.executable, str(folder / "install.py"), "--target", str(target)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_parts_are_joined_and_installed(tmp_path):
    wheel = small_wheel(tmp_path)
    parts = pack_wheels.split_into_parts([wheel], tmp_path / "packed", 4000)
    assert len(parts) > 1
    assert all(part.stat().st_size <= 4000 for part in parts)
    done = install(tmp_path / "packed", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert "ANSWER = 42" in (tmp_path / "site" / "packed_module.py").read_text()


def test_missing_and_damaged_parts_are_named(tmp_path):
    parts = pack_wheels.split_into_parts([small_wheel(tmp_path)], tmp_path / "packed", 4000)
    parts[0].write_bytes(b"x")
    damaged = install(tmp_path / "packed", tmp_path / "site")
    assert damaged.returncode == 2
    assert "part-000: damaged" in damaged.stderr
    parts[0].unlink()
    missing = install(tmp_path / "packed", tmp_path / "site")
    assert missing.returncode == 2
    assert "part-000: missing" in missing.stderr
