"""Writing files so that nothing is lost or half-written, and nothing but a plain file is replaced."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gemm_model.errors import InputError

NEW_FILE_MODE = 0o666
"""Mode of a new file [permission bits]; before the process's umask; POSIX."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path whose contents become those of `path` when the block ends without an error.

    A plain file is replaced in one step and keeps its permissions; a symbolic link stays and the file that
    it points to is replaced; a device or a pipe is written to. The temporary name keeps the suffix, because
    writers choose the format by it. Raises InputError where the place cannot be written.
    """
    path = Path(path)
    check_writable(path)
    try:
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        special = target.exists() and not target.is_file()
        temporary = _new_file(Path(tempfile.gettempdir()) if special else target.parent, path)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        yield temporary
        if special:
            with temporary.open("rb") as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        else:
            with suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: Path, text: str) -> None:
    """Write all of a text to a file, or nothing. Lone surrogates, which UTF-8 lacks, are written as
    escapes.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def read_json(path: Path, expected: str) -> Any:
    """The content of a JSON file. Raises InputError for one that is not there or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected {expected}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r}: not readable as JSON ({error})") from None


def csv_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Rows as CSV with a header; without `columns` those of all rows, in their order. None is an empty cell."""
    text = io.StringIO()
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def check_writable(path: Path) -> None:
    """Raise InputError if a file could not be written, without writing it; called before long work."""
    try:
        target = Path(path).resolve()
        if target.is_dir():
            raise InputError(f"{path}: cannot be written (it is a directory); expected the name of a file")
        if target.exists():
            if not os.access(target, os.W_OK):
                raise InputError(f"{path}: cannot be written (Permission denied); expected a writable file")
            if not target.is_file():
                return
        _check_folder(path, target.parent)
    except OSError as error:
        raise _unwritable(path, error) from None
    except (ValueError, RuntimeError) as error:  # a zero byte in the name; links that lead in a circle
        raise InputError(f"{str(path)!r}: cannot be written ({error}); expected the name of a file") from None


def check_folder_writable(folder: Path) -> None:
    """Raise InputError if a folder could not be made or written into, without making it."""
    try:
        _check_folder(folder, Path(folder).resolve())
    except OSError as error:
        raise _unwritable(folder, error) from None
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{str(folder)!r}: cannot be written ({error}); expected a folder") from None


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Lock a folder, so that the files of two runs do not mix.

    A new folder is removed again if nothing was written. Raises InputError if another run holds the lock. The
    operating system releases the lock with the process; a file system without locks lets two runs in.
    """
    try:
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        lock_alone(handle, folder)
        yield
    finally:
        if new:
            with suppress(OSError):  # it holds files
                folder.rmdir()
        os.close(handle)


def lock_alone(handle: int, place: Path) -> None:
    """Lock an open file or folder until it is closed; InputError where another run holds the lock."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"another run is writing into {place}; expected another place, or to wait") from None
    except OSError:
        return


def _check_folder(path: Path, folder: Path) -> None:
    """Raise InputError unless the folder, or the nearest one above it that exists, is writable."""
    while not folder.exists() and folder.parent != folder:
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"{path}: cannot be written ({folder} is a file); expected a folder there")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot be written (Permission denied); expected a writable place")


def _new_file(folder: Path, like: Path) -> Path:
    """A new file with permissions by the umask, hidden, in a folder; its name ends as that of `like`."""
    while True:
        name = f".{like.stem[:80]}-{os.urandom(6).hex()}{like.suffix}"
        with suppress(FileExistsError):
            os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, NEW_FILE_MODE))
            return folder / name


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written ({error.strerror}); expected a writable place")
