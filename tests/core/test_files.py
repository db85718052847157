"""Written files: nothing but plain files is replaced, permissions stay, and nothing is left behind."""

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from gemm_model.core.files import (
    atomic_path,
    atomic_write,
    check_folder_writable,
    check_writable,
    sole_writer,
)
from gemm_model.core.processes import local_processes
from gemm_model.errors import InputError


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_umask_s_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        atomic_write(tmp_path / "new.txt", "text")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "new.txt") == 0o640


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "secret.txt"
    path.write_text("old")
    path.chmod(0o600)
    atomic_write(path, "new")
    assert (path.read_text(), mode_of(path)) == ("new", 0o600)


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    atomic_write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_device_is_written_to_and_not_replaced(gemm_model):
    outcome = gemm_model("list", "types", "--output", "/dev/null")
    assert outcome.code == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert "No space left on device" in gemm_model("list", "types", "--output", "/dev/full").err


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    atomic_write(pipe, "through")
    reader.join(timeout=120)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe"]


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "kept.txt"
    path.write_text("old")

    def write_half():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("kept.txt", "old")]


@pytest.mark.parametrize("name", ["", "file/below.txt", "a\0b", "loop", "x" * 300])
def test_a_place_that_cannot_be_written_is_told_before_the_work(tmp_path, name):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="cannot be written"), atomic_path(tmp_path / name):
        pass
    if len(name) < 300:
        with pytest.raises(InputError, match="cannot be written"):
            check_writable(tmp_path / name)
    with pytest.raises(InputError, match="cannot be written"):
        check_folder_writable(tmp_path / "file")


def test_one_folder_has_one_writer(tmp_path):
    with (
        sole_writer(tmp_path),
        pytest.raises(InputError, match="another run is writing into"),
        sole_writer(tmp_path),
    ):
        pass
    with sole_writer(tmp_path):
        assert list(tmp_path.iterdir()) == []
    with sole_writer(tmp_path / "unused"):
        assert [path.name for path in tmp_path.iterdir()] == ["unused"]
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_ended_removes_what_it_was_writing(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from gemm_model.cli import run_and_report\n"
        "from gemm_model.core.files import atomic_path\n"
        "def work():\n"
        "    with atomic_path(Path(sys.argv[1])) as path:\n"
        "        path.write_text('half'); print('writing', flush=True); time.sleep(3600)\n"
        "sys.exit(run_and_report('test', work))\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out.txt")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"writing\n"
    run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=300)
    assert (run.returncode, err) == (143, b"test: ended by signal 15\n")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_ends_processes_at_work():
    with pytest.raises(KeyboardInterrupt):
        _interrupted_at_work()
    assert not [each for each in multiprocessing.active_children() if "Spawn" in each.name]


def _interrupted_at_work():
    with local_processes(1) as executor:
        work = executor.submit(time.sleep, 3600.0)
        while not work.running():
            time.sleep(0.01)
        raise KeyboardInterrupt


def test_work_that_ends_leaves_no_process():
    with local_processes(1) as executor:
        assert list(executor.map(abs, [-1, 2])) == [1, 2]
    assert not [each for each in multiprocessing.active_children() if "Spawn" in each.name]
