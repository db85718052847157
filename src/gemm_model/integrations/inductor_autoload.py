"""What `import torch` calls: GEMM_MODEL_INDUCTOR=1, =h200 or =h200,confirm=2 installs our choices."""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "GEMM_MODEL_INDUCTOR"


def autoload() -> None:
    """`inductor.install` as the environment asks for it; nothing without it, and no error ever."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked in ("", "0"):
        return
    import logging

    try:
        from gemm_model.integrations.inductor import install

        install(**_arguments(asked))
    except Exception as reason:  # a program goes on whatever its environment says
        logging.getLogger(__name__).warning("%s=%s has no effect: %s", VARIABLE, asked, reason)


def _arguments(asked: str) -> dict[str, Any]:
    """The arguments of `install`: a GPU's name (1: this machine's), and confirm=K."""
    name, _, rest = asked.partition(",")
    found: dict[str, Any] = {} if name == "1" else {"gpu": name}
    key, _, value = rest.partition("=")
    if rest and (key != "confirm" or not value.isdecimal()):
        raise ValueError(f"{rest!r}; expected confirm=K")
    return found | ({"confirm": int(value)} if rest else {})
