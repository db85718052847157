"""Write a page as one HTML file.

Plotly comes from the Python package of that name (extra `page`); it and the table's columns are compressed
into the page, whose script unpacks them.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import asdict
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model import __version__
from gemm_model.config import read_toml
from gemm_model.config.mechanisms import RESOURCES
from gemm_model.core.files import atomic_write, check_writable
from gemm_model.errors import InputError, MissingExtraError, extra_needed
from gemm_model.report.page.content import COLORS, Columns, Fact, Listing, Page

COMPRESSION_LEVEL = 6
"""Level of gzip [1]; pages; 9 takes half as long again and makes Plotly 0.2 % smaller."""


def check_page(path: Path) -> None:
    """Raise InputError for a name that is no page's or cannot be written, MissingExtraError without Plotly.

    Verbs call it before their work, so that nothing is computed for a page that cannot be written.
    """
    if path.suffix not in (".html", ".htm"):
        raise InputError(f"--html is {path}; expected a file that ends in .html")
    check_writable(path)
    plotly_script()


def write_page(page: Page, path: Path) -> None:
    """Write a page to a file, all of it or nothing; raises InputError where the place cannot be written."""
    atomic_write(path, page_html(page))


def page_html(page: Page) -> str:
    """The page as one HTML document."""
    head, blob = _columns(page.columns)
    content = {"figures": [asdict(figure) for figure in page.figures], "columns": head, "colors": COLORS}
    parts = {
        "TITLE": escape(page.title),
        "SUBTITLE": escape(page.subtitle),
        "VERSION": escape(__version__),
        "FACTS": "\n".join(map(_fact_html, page.facts)),
        "NOTES": "".join(f"<p class=note>{escape(note)}</p>" for note in page.notes),
        "LISTINGS": "\n".join(map(_listing_html, page.listings)),
        "STYLE": _resource("page.css"),
        # '</' would end the script element early.
        "CONTENT": json.dumps(content, allow_nan=False, default=_plain).replace("</", "<\\/"),
        "COLUMNS": _packed(blob),
        "PLOTLY": _packed(plotly_script().read_bytes()),
        "SCRIPT": _resource("page.js"),
    }
    parts["TERMS"] = _terms_html(f"{page.subtitle}\n{page.facts}\n{page.listings}\n{parts['CONTENT']}")
    document = _resource("page.html")
    for name, text in parts.items():
        document = document.replace(f"{{{{{name}}}}}", text)
    return document


def plotly_script() -> Path:
    """Where the installed package `plotly` keeps its script, found without importing it (0.3 s)."""
    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return script
    raise MissingExtraError(extra_needed("a page", "plotly", "plot"))


def _columns(columns: Columns | None) -> tuple[dict[str, Any] | None, bytes]:
    """Metadata of the columns for the script, and their bytes, each column aligned to four."""
    if columns is None:
        return None, b""
    blob = bytearray()
    described = []
    for name, values in columns.numbers.items():
        described.append({"name": name, "type": "Float32Array", "start": len(blob)})
        blob += np.asarray(values, dtype="<f4").tobytes()
    for name, texts in columns.texts.items():
        names, codes = np.unique(np.asarray(texts, dtype=str), return_inverse=True)
        wide = len(names) > np.iinfo(np.uint8).max
        described.append(
            {"name": name, "type": "Uint16Array" if wide else "Uint8Array", "start": len(blob)}
            | {"names": names.tolist()}
        )
        blob += codes.astype("<u2" if wide else "u1").tobytes()
        blob += bytes(-len(blob) % 4)
    rows = len(next(iter(columns.numbers.values())))
    return {"rows": rows, "columns": described, "filters": dict(columns.filters)}, bytes(blob)


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, COMPRESSION_LEVEL, mtime=0)).decode("ascii")


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _plain(value: object) -> Any:
    """Numbers and arrays of numpy as those of JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _terms_html(shown: str) -> str:
    """A legend of the terms that a page shows, in alphabetical order."""
    units = {name: unit["meaning"] for name, unit in read_toml("explanations")["attention_units"].items()}
    known = units | {name: each.meaning for name, each in RESOURCES.items()} | read_toml("terms")
    pattern = "|".join(sorted(map(re.escape, ", ".join(known).split(", ")), key=len, reverse=True))
    found = set(re.findall(rf"(?<![\w-])({pattern})s?(?![\w-])", shown))
    told = {", ".join(word for word in words.split(", ") if word in found): known[words] for words in known}
    terms = sorted(filter(None, told), key=str.lower)
    rows = "".join(f"<dt>{escape(term)}</dt><dd>{escape(told[term])}</dd>" for term in terms)
    return f"<section class=panel><h2>Terms</h2><dl class=terms>{rows}</dl></section>"


def _fact_html(fact: Fact) -> str:
    note = f"<span class=fact-note>{escape(fact.note)}</span>" if fact.note else ""
    return f"<div class=fact><dt>{escape(fact.label)}</dt><dd>{escape(fact.value)}{note}</dd></div>"


def _listing_html(listing: Listing) -> str:
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in listing.header)
    names = [escape(name, quote=True) for name in listing.header]
    body = "".join(
        "<tr>"
        + "".join(
            f"<td data-name='{name}'>{escape(cell)}</td>" for name, cell in zip(names, row, strict=True)
        )
        + "</tr>"
        for row in listing.rows
    )
    return (
        f"<section class=panel><h2>{escape(listing.title)}</h2><p>{escape(listing.note)}</p>"
        f"<div class='scroll listing' tabindex=0 role=region aria-label='{escape(listing.title, quote=True)}'>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )
