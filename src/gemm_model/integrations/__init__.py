"""Adapters to the tools people already use; each imports its tool only when it is asked for."""

import logging

log = logging.getLogger(__name__)


def stand_aside(what: str, reason: Exception) -> None:
    """Say in one line that a tool, named in `what`, does something by itself."""
    why = str(reason).partition("\n")[0] or type(reason).__name__
    log.warning("gemm-model leaves %s: %s", what, why)
