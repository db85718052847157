"""Hostile and ordinary words, files and Python calls, made from a seed; what must hold of each answer.

`python -m tests.fuzz --cases 10000 [--first 0]` runs many; `tests/test_fuzz.py` runs a few. Of each case:
no traceback, one sentence and exit code 2 for bad input, valid JSON, every time a positive finite number, no
file half-written or left behind, and at most MAX_SECONDS of processor time.
"""

import argparse
import contextlib
import csv
import io
import json
import math
import random
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

import gemm_model
from gemm_model import GemmProblem, InputError, KernelConfig
from gemm_model.timeline.iket import TracedKernel, read_iket, trace_of
from gemm_model.timeline.phases import median_of
from gemm_model.timeline.trace import kernel_identity, write_trace_table
from tests.timeline.iket_sample import sample, write_sample

MAX_SECONDS = 5.0
EXIT_CODES = (0, 2, 3, 4)


def _words_of(value: Any) -> Any:
    """A value of fuzz_words.json: `<9 x 400>` is a digit 400 times, the name of a list that list."""
    if isinstance(value, dict):
        return {name: _words_of(each) for name, each in value.items()}
    if isinstance(value, str):
        return _words_of(WORDS[value])
    return [re.sub(r"<(.) x (\d+)>", lambda found: found[1] * int(found[2]), word) for word in value]


WORDS = json.loads(Path(__file__).with_name("fuzz_words.json").read_text(encoding="utf-8"))
SIZES, BAD_SIZES, BAD_TILES, GPUS, TYPES, MODELS, JUNK, FORMATS, OVERRIDES, YAML_VALUES = map(
    _words_of,
    (
        *("SIZES", "BAD_SIZES", "BAD_TILES", "GPUS", "TYPES", "MODELS"),
        *("JUNK", "FORMATS", "OVERRIDES", "YAML_VALUES"),
    ),
)
CHOICES: dict[str, list[str]] = _words_of(WORDS["CHOICES"])
VERBS: dict[str, dict[str, list[str]]] = _words_of(WORDS["VERBS"])
FLAGS: dict[str, list[str]] = _words_of(WORDS["FLAGS"])
OUTPUT_IS_A_FILE = _words_of("OUTPUT_IS_A_FILE")

CONFIG = Path(__file__).parents[1] / "src/gemm_model/config"
KNOWN = yaml.safe_load(Path(__file__).with_name("fuzz_files.yaml").read_text())
FILES: dict[str, str | bytes] = {
    **KNOWN["files"],
    "gpu": (CONFIG / "gpu/h200.yaml").read_text(),
    "machine": (CONFIG / "pipeline/balanced.yaml").read_text(),
    "calibration": min(CONFIG.glob("calibration/h200/*.yaml")).read_text(),
    "residual": (CONFIG / "calibration/h200/quack.residual.npz").read_bytes(),
    "iket": json.dumps(sample()),
}
"""What each file holds before it is changed; and `trace`, a measured one."""
KERNEL = "--m 256 --n 128 --k 128 --cta 128x128"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
BAD_YAML = [
    *(BOMB, "[" * 100000, "- " * 50000, "{a: " * 5000, "sm_count: " + "9" * 5000 + "\n"),
    *KNOWN["bad_yaml"],
]
JSON_VALUES: list[Any] = [
    *(None, [], {}, "x", "", True, -1, 0, 1.5, 10**30, 10**400, math.inf, math.nan, [1], {"a": 1}),
    *("9" * 4400, "\ud800", "${oc.env:HOME}"),
]


@dataclass
class Answer:
    """What one case came to."""

    what: str
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_case(seed: int, folder: Path) -> Answer:
    """Make the case of a seed, run it in an empty folder, and say what does not hold."""
    rng = random.Random(seed)
    kind = rng.choices((_words, _file, _python), (6, 5, 3))[0]
    return kind(rng, folder)


def _words(rng: random.Random, folder: Path) -> Answer:
    return _command(_line(rng, rng.choice(list(VERBS)), folder), folder)


def _line(rng: random.Random, verb: str, folder: Path) -> list[str]:
    """A command line that is fine, or has a few words changed."""
    options = {name: _mostly_good(rng, values) for name, values in VERBS[verb].items()}
    if verb in ("predict", "explain") and rng.random() < 0.3:
        return [verb, *_routed(rng), "--format", rng.choice(FORMATS)]
    known = sorted(_known_options(verb) & set(CHOICES))
    for name in rng.sample(known, min(rng.choice((0, 1, 1, 2, 3)), len(known))):
        options[name] = _mostly_good(rng, CHOICES[name])
    if rng.random() < 0.05:
        name = rng.choice(list(CHOICES))
        options[name] = rng.choice(CHOICES[name])
    if options and rng.random() < 0.15:
        options[rng.choice(list(options))] = rng.choice([*BAD_SIZES, *BAD_TILES, *JUNK])
    if options and rng.random() < 0.07:
        del options[rng.choice(list(options))]
    words = [verb, *(word for pair in options.items() for word in pair)]
    words += _places(rng, verb, folder)
    words += rng.sample(FLAGS.get(verb, []), rng.randint(0, min(1, len(FLAGS.get(verb, [])))))
    if rng.random() < 0.2:
        words.append(rng.choice(OVERRIDES))
    if rng.random() < 0.04:
        words.insert(rng.randrange(len(words) + 1), rng.choice(JUNK))
    return words


def _mostly_good(rng: random.Random, values: list[str]) -> str:
    """One of some values of which the good ones stand first."""
    return rng.choice(values if rng.random() < 0.25 else values[: (len(values) + 1) // 2])


@cache
def _known_options(verb: str) -> frozenset[str]:
    from gemm_model.cli import parser_of

    _, child = parser_of(verb)
    assert child is not None
    return frozenset(option for action in child._actions for option in action.option_strings)


def _places(rng: random.Random, verb: str, folder: Path) -> list[str]:
    """What a verb needs besides options of values: positions, files, and limits on what it may take on."""
    if verb in PLACES:
        return PLACES[verb](rng, folder)
    if verb in KNOWN["places"]:
        saved = {
            name: _saved(folder, f"{name}.csv", KNOWN["files"][name])
            for name in ("shapes", "problems", "runs")
        }
        return KNOWN["places"][verb].format(folder=folder, **saved).split()
    if verb in OUTPUT_IS_A_FILE and rng.random() < 0.2:
        outputs = [str(folder / "out.txt"), "/dev/null", str(folder), f"{folder}/a\0b", "/dev/full"]
        return ["--output", rng.choice(outputs)]
    return []


def _data(rng: random.Random, folder: Path) -> list[str]:
    action = rng.choice(["import", "show", "verify", "export", "diff", "burn"])
    return [
        action,
        str(folder / "set"),
        *([_saved(folder, "t.csv", KNOWN["files"]["sweep"])] * (action == "import")),
    ]


def _one_of(*names: str, option: str = "") -> Callable[[random.Random, Path], list[str]]:
    """One of some words, or an option with the path of a file of one of these names."""
    return lambda rng, folder: [option, str(folder / rng.choice(names))] if option else [rng.choice(names)]


PLACES: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "list": _one_of("gpus", "models", "families", "types", "calibrations", "colours"),
    "completion": _one_of("bash", "zsh", "fish"),
    "torch": _one_of("nowhere:build", "nowhere", "no/such.py:build", ":"),
    "characterize": _one_of("mine.txt", "none/\0/mine.yaml", option="--output"),
    "explore": _one_of("page.html", "page.txt", "none/\0/page.html", option="--html"),
    "data": _data,
}


def _file(rng: random.Random, folder: Path) -> Answer:
    """A command on a file of which some characters, cells or lines were changed."""
    ending, content, line = rng.choice(KNOWN["uses"])
    chosen = {"format": rng.choice(FORMATS), "model": rng.choice(MODELS)}
    _saved(folder, "sizes.csv", "m,n,k\n512,512,512\n")
    words = line.format(folder=folder, kernel=KERNEL, **chosen).split()
    text = _trace_table() if content == "trace" else FILES[content]
    if isinstance(text, bytes):
        (folder / f"t.{ending}").write_bytes(_mangled_bytes(rng, text))
        return _command([*words, str(folder / f"t.{ending}")], folder)
    mangled = MANGLED.get(ending, _mangled)(rng, text)
    if rng.random() < 0.05:
        words = [*words, rng.choice(["/dev/null", str(folder), "/nowhere/t.csv", f"{folder}/a\0.yaml"])]
    else:
        words = [*words, _saved(folder, f"t.{ending}", mangled)]
    return _command(words, folder)


def _routed(rng: random.Random) -> list[str]:
    """A kernel of a problem beyond plain products."""
    words = rng.choice(KNOWN["routed"]).split()
    return [rng.choice(CHOICES[f"--{word[1:-1]}"]) if word[0] == "{" else word for word in words]


@cache
def _trace_table() -> str:
    """A small measured trace as `gemm-model trace` writes it."""
    identity = kernel_identity(GemmProblem.of(256, 128, 128), KernelConfig(cta_m=128, cta_n=128))
    kernel = TracedKernel(gpu="h200", identity=identity, k_tiles=2, stages=3, untraced_us=1.25)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        (launch,) = read_iket(write_sample(Path(folder) / "i.json"))
        write_trace_table(median_of([trace_of(launch, kernel)] * 3), path)
        return path.read_text()


def _mangled_json(rng: random.Random, text: str) -> str:
    """One value anywhere in a document replaced by another of any kind, or the text cut short."""
    document = json.loads(text)
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            places.append((value, key))
            if isinstance(inner, dict | list):
                visit(inner)

    visit(document)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        holder, key = rng.choice(places)
        holder[key] = rng.choice(JSON_VALUES)
    changed = json.dumps(document)
    return changed if rng.random() < 0.9 else changed[: rng.randrange(len(changed))]


def _mangled_bytes(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data))
    if rng.random() < 0.2:
        return data[:place]
    changed = bytearray(data)
    changed[place : place + rng.randrange(40)] = rng.randbytes(rng.randrange(40))
    return bytes(changed)


def _mangled(rng: random.Random, text: str) -> str:
    lines = [line.split(",") for line in text.splitlines()]
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        row = rng.choice(lines)
        way = rng.randrange(6)
        if way <= 2 and row:
            cells = [*BAD_SIZES, *JUNK, *SIZES, "1e300", "-5", "0.0", "True"]
            row[rng.randrange(len(row))] = rng.choice(cells)
        elif way == 3 and row:
            del row[rng.randrange(len(row))]
        elif way == 4:
            lines.append(list(row))
        else:
            row.append(rng.choice(JUNK))
    joined = "\n".join(",".join(row) for row in lines) + "\n"
    if rng.random() < 0.1:
        joined = joined[: rng.randrange(len(joined))]
    return joined


def _mangled_yaml(rng: random.Random, text: str) -> str:
    if rng.random() < 0.2:
        return rng.choice(BAD_YAML)
    lines = text.splitlines()
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        place = rng.randrange(len(lines))
        key, colon, _value = lines[place].partition(":")
        way = rng.randrange(4)
        if way <= 1 and colon:
            lines[place] = f"{key}: {rng.choice(YAML_VALUES)}"
        elif way == 2:
            del lines[place]
        else:
            lines.insert(place, rng.choice(["extra: 1", "  - x", "3: 4", "\tx: 1", "name: ${oc.env:HOME}"]))
    return "\n".join(lines) + "\n"


MANGLED: dict[str, Callable[[random.Random, str], str]] = {"yaml": _mangled_yaml, "json": _mangled_json}
"""How a text is changed, by the ending of its file; others line by line and cell by cell."""


def _saved(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return str(path)


def _command(words: list[str], folder: Path) -> Answer:
    from gemm_model.cli import main

    answer = Answer(what="gemm-model " + shlex.join(word[:200] for word in words))
    before = set(folder.rglob("*"))
    out, err = io.StringIO(), io.StringIO()
    started = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            answer.problems.append(traceback.format_exc())
            return answer
    answer.seconds = time.process_time() - started
    _check_code(answer, code, out.getvalue(), err.getvalue())
    new = set(folder.rglob("*")) - before
    if any(path.name.startswith(".") for path in new):
        answer.problems.append(f"left behind: {sorted(map(str, new))}")
    if code == 2 and any(path.is_file() for path in new):
        answer.problems.append(f"wrote after bad input: {sorted(map(str, new))}")
    if code == 0:
        _check_output(answer, words, out.getvalue())
    return answer


def _check_code(answer: Answer, code: int, out: str, err: str) -> None:
    if code not in EXIT_CODES:
        answer.problems.append(f"exit code {code}: {err[-500:]}")
    if "Traceback" in err or "Traceback" in out:
        answer.problems.append(err[-2000:])
    if code == 2:
        last = err.strip().splitlines()[-1:] or [""]
        if not last[0].startswith("gemm-model"):
            answer.problems.append(f"no sentence: {err[-500:]!r}")
        if out:
            answer.problems.append(f"output beside bad input: {out[:200]!r}")
    if answer.seconds > MAX_SECONDS:
        answer.problems.append(f"took {answer.seconds:.1f} s")


def _check_output(answer: Answer, words: list[str], out: str) -> None:
    asked = words[words.index("--format") + 1] if "--format" in words else "table"
    if not out.strip() or "--help" in words or "-h" in words:
        return
    try:
        if asked == "json":
            document = json.loads(out, parse_constant=_no_constant)
            if document["schema"] != "gemm-model/1":
                answer.problems.append(f"schema {document['schema']}")
            _check_times(answer, document)
        elif asked == "jsonl":
            for line in out.splitlines():
                _check_times(answer, json.loads(line, parse_constant=_no_constant))
        elif asked == "csv":
            for row in csv.DictReader(io.StringIO(out)):
                _check_times(answer, {name: _number(cell) for name, cell in row.items() if name})
    except (ValueError, KeyError, TypeError) as error:
        answer.problems.append(f"not valid {asked}: {error!r}: {out[:300]}")


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _number(cell: object) -> object:
    try:
        return float(str(cell))
    except ValueError:
        return cell


def _check_times(answer: Answer, value: object, key: str = "") -> None:
    if isinstance(value, dict):
        # A row that is not predicted says why, and has no times.
        if value.get("disposition", "ok") == "ok":
            for name, inner in value.items():
                _check_times(answer, inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            _check_times(answer, inner, key)
    elif key in ("predicted_us", "runtime_us", "best_us") and not _is_time(value):
        answer.problems.append(f"{key} is {value!r}")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


ODD_NUMBERS = (
    *(0, -1, 1.5, None, "128", True, math.nan, math.inf, 2**41, 10**400),
    *(np.float64(3), [], np.array([1, 2])),
)
NUMBERS = (1, 7, 128, 4096, np.int32(256), np.int64(4096), np.uint8(200), 2**40)
ODD_TYPES = (*TYPES, "nope", "", None, 3, np.dtype("float16"), "torch.bfloat16")
ODD_VALUES = (0, 1.0, math.nan, None, True, "x", "", np.inf, -1, 10**30, pd.NA)


class _Arguments:
    """Arguments of the Python API, most of them good."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.rng = rng
        self.folder = folder

    def size(self) -> Any:
        return self.rng.choice(ODD_NUMBERS if self.rng.random() < 0.03 else NUMBERS)

    def problem(self) -> GemmProblem:
        dtype: Any = self.rng.choice(ODD_TYPES if self.rng.random() < 0.15 else TYPES[:3])
        batch = self.rng.choice([1, 1, 1, self.size()])
        return GemmProblem.of(self.size(), self.size(), self.size(), dtype, batch=batch)

    def config(self) -> KernelConfig:
        rng = self.rng
        tile = [64, 128, 128, 256, np.int64(128), self.size() if rng.random() < 0.1 else 128]
        schedules: Any = ["cooperative", "pingpong", "2cta", "x", None]
        more: Any = {"schedule": rng.choice(schedules)} if rng.random() < 0.3 else {}
        return KernelConfig(
            cta_m=rng.choice(tile),
            cta_n=rng.choice(tile),
            cluster_m=rng.choice([1, 2, self.size() if rng.random() < 0.1 else 1]),
            **more,
        )

    def gpu(self) -> Any:
        odd = [
            *GPUS,
            "nope",
            "",
            None,
            3,
            ["h200"],
            "missing.yaml",
            Path("missing.yaml"),
            self.folder,
            "B200",
        ]
        return self.rng.choice(odd) if self.rng.random() < 0.2 else "h200"

    def frame(self) -> pd.DataFrame:
        rng = self.rng
        table = pd.read_csv(io.StringIO(KNOWN["files"]["kernels"]))
        for _ in range(rng.choice((0, 0, 1, 2))):
            column = rng.choice(list(table.columns))
            way = rng.randrange(5)
            if way == 0:
                table = table.drop(columns=column)
            elif way == 1:
                table[column] = rng.choice(ODD_VALUES)
            elif way == 2:
                table[column] = table[column].astype(rng.choice([str, object]))
            elif way == 3:
                return pd.concat([table, table[[column]]], axis=1)
            else:
                kernel = rng.choice(["quack", "cublas"])
                table = table.assign(disposition=rng.choice(["ok", "failed"]), kernel=kernel)
        return table


def _python(rng: random.Random, folder: Path) -> Answer:
    """A call of the Python API with values of all sorts."""
    of = _Arguments(rng, folder)
    calls: list[Callable[[], Any]] = [
        lambda: gemm_model.predict(of.problem(), of.config(), of.gpu()).runtime_us,
        lambda: (
            gemm_model.predict(of.problem(), of.config(), of.gpu(), rng.choice([*MODELS, "nope"])).runtime_us
        ),
        lambda: (
            gemm_model.predict_table(of.frame(), of.gpu(), rng.choice(MODELS))
            .query("disposition == 'ok'")["predicted_us"]
            .tolist()
        ),
        lambda: (
            gemm_model.rank(of.problem(), of.gpu(), rng.choice([1, 3, 0, "x"])).best.prediction.runtime_us
        ),
        lambda: gemm_model.explain(of.problem(), of.config(), of.gpu()).prediction.runtime_us,
    ]
    place = rng.randrange(len(calls))
    answer = Answer(what=f"Python call {place} of {len(calls)}")
    times: Any = []
    started = time.process_time()
    try:
        times = calls[place]()
    except InputError as error:
        if "\n" in str(error):
            answer.problems.append(f"more than one line: {error}")
    except BaseException:
        answer.problems.append(traceback.format_exc())
    answer.seconds = time.process_time() - started
    if answer.seconds > MAX_SECONDS:
        answer.problems.append(f"took {answer.seconds:.1f} s")
    for value in times if isinstance(times, list) else [times]:
        _check_times(answer, value, "predicted_us")
    return answer


def answers(first: int, cases: int) -> Iterator[tuple[int, Answer]]:
    """Seed and answer of each case."""
    for seed in range(first, first + cases):
        with tempfile.TemporaryDirectory() as folder:
            yield seed, run_case(seed, Path(folder))


def reported(seed: int, answer: Answer) -> str:
    """A case in words, with what is wrong."""
    return f"seed {seed}: {answer.what}\n  " + "\n  ".join(answer.problems)


def failures(first: int, cases: int) -> list[str]:
    """The cases of some seeds that do not hold, each with its seed, its words and what is wrong."""
    return [reported(seed, answer) for seed, answer in answers(first, cases) if answer.problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    bad, verbs, slowest = 0, Counter[str](), Answer(what="none")
    for seed, answer in answers(args.first, args.cases):
        verbs[answer.what.split()[1]] += 1
        slowest = max(slowest, answer, key=lambda each: each.seconds)
        if answer.problems:
            bad += 1
            print(reported(seed, answer), flush=True)
    print(", ".join(f"{verb} {count}" for verb, count in verbs.most_common(len(VERBS) + 1)))
    print(f"slowest: {slowest.seconds:.1f} s of processor time, {slowest.what[:200]}")
    print(f"{args.cases} cases, {bad} that do not hold")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
