"""A worker process seen from the runner: requests have a time limit, a crash or a hang ends in a new one."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gemm_model.bench.rows import Outcome
from gemm_model.errors import GemmModelError, InputError, MissingExtraError

START_LIMIT_S = 180.0
"""Most time of a start [s]; all workers; to import torch and a kernel DSL takes about 15 s on an idle
machine."""

STDERR_TAIL = 300
"""Characters of a dead worker's last words [1]; all workers; chosen."""


class WorkerProcess:
    """Starts on the first request; after a crash or a hang the next request starts a fresh process.

    A fresh process first loads its providers and, unless it is there to compile only, the device.
    """

    def __init__(
        self,
        device: str,
        kernels: Sequence[str] = (),
        *,
        needs_device: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._greeting = {"operation": "load", "kernels": list(kernels), "device": needs_device}
        self._command = [sys.executable, "-m", "gemm_model.bench.worker", "--device", device]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        descriptor, name = tempfile.mkstemp(prefix="gemm-bench-", suffix=".log")
        self._stderr = os.fdopen(descriptor, "wb")
        self._stderr_path = Path(name)
        self._buffer = b""

    def ask(self, request: Mapping[str, Any], limit_s: float) -> Outcome:
        """The worker's reply; 'crashed' or 'hung' where there is none within `limit_s`."""
        if self._process is None or self._process.poll() is not None:
            self._start()
            loaded = self._exchange(self._greeting, START_LIMIT_S)
            if loaded.disposition != "ok":
                return loaded
        return self._exchange(request, limit_s)

    def _exchange(self, request: Mapping[str, Any], limit_s: float) -> Outcome:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._read_line(limit_s)
        except BrokenPipeError:
            line = b""
        except TimeoutError:
            self.stop(kill=True)
            return Outcome(disposition="hung", detail=f"no reply within {limit_s:.0f} s")
        if not line:
            code = process.wait()
            self.stop(kill=True)
            return Outcome(disposition="crashed", detail=_exit_text(code, self._stderr_tail()))
        reply = json.loads(line)
        if "error" in reply:
            self.stop(kill=False)
            raise _error_from(reply)
        return Outcome(**reply)

    def stop(self, *, kill: bool = False) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        self.stop()
        self._stderr.close()
        self._stderr_path.unlink(missing_ok=True)

    def _start(self) -> None:
        self._buffer = b""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._environment,
            start_new_session=True,
        )

    def _read_line(self, limit_s: float) -> bytes:
        """One line of the worker's stdout; b'' at its end; TimeoutError after `limit_s`."""
        assert self._process is not None
        assert self._process.stdout is not None
        stdout = self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(limit_s):
                    raise TimeoutError
                chunk = os.read(stdout.fileno(), 65536)
                if not chunk:
                    return b""
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _stderr_tail(self) -> str:
        text = self._stderr_path.read_text(errors="replace").strip()
        lines = text[-STDERR_TAIL:].splitlines()
        return lines[-1].strip() if lines else ""


def _exit_text(code: int, stderr: str) -> str:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {stderr}" if stderr else how


def _error_from(reply: Mapping[str, Any]) -> GemmModelError:
    kinds = {error.exit_code: error for error in (InputError, MissingExtraError)}
    return kinds.get(reply["exit_code"], GemmModelError)(reply["error"])
