"""gemm-model: how fast a GPU matrix multiplication will run, and why, without running it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemm_model.api import predict, predict_table
    from gemm_model.choice.expected import expected_time, rank_routing
    from gemm_model.choice.selection import Ranker, rank
    from gemm_model.config import gpu_names as gpus
    from gemm_model.core.attention import AttentionConfig, AttentionProblem
    from gemm_model.core.conv import ConvProblem
    from gemm_model.core.epilogue import Epilogue
    from gemm_model.core.gpu import GpuSpec, load_gpu
    from gemm_model.core.grouped import GroupedGemm
    from gemm_model.core.kernel_config import KernelConfig
    from gemm_model.core.prediction import Prediction
    from gemm_model.core.problem import GemmProblem
    from gemm_model.core.routing import Routing
    from gemm_model.errors import InputError
    from gemm_model.integrations.torch_timer import GemmTimer
    from gemm_model.integrations.triton import triton_perf_model
    from gemm_model.kernel_model.explanation import explain
    from gemm_model.kernels.registry import families
    from gemm_model.models import models
    from gemm_model.serving.layers import Parallelism
    from gemm_model.serving.model_parts import Step
    from gemm_model.serving.model_time import predict_model

    __version__: str

_HOMES = {
    **{"triton_perf_model": "integrations.triton", "GemmTimer": "integrations.torch_timer", "predict": "api"},
    **{"explain": "kernel_model.explanation", "predict_model": "serving.model_time", "predict_table": "api"},
    **{"AttentionProblem": "core.attention", "KernelConfig": "core.kernel_config", "Routing": "core.routing"},
    **{"AttentionConfig": "core.attention", "expected_time": "choice.expected", "Ranker": "choice.selection"},
    **{"rank_routing": "choice.expected", "Prediction": "core.prediction", "Parallelism": "serving.layers"},
    **{"families": "kernels.registry", "GroupedGemm": "core.grouped", "GemmProblem": "core.problem"},
    **{"Step": "serving.model_parts", "Epilogue": "core.epilogue", "InputError": "errors"},
    **{"rank": "choice.selection", "ConvProblem": "core.conv", "load_gpu": "core.gpu", "GpuSpec": "core.gpu"},
    **{"models": "models"},
}
"""Of each name its module in this package."""

__all__ = ["AttentionConfig", "AttentionProblem", "ConvProblem", "Epilogue", "GemmProblem", "GemmTimer"]
__all__ += ["GpuSpec", "GroupedGemm", "InputError", "KernelConfig", "Parallelism", "Prediction", "Ranker"]
__all__ += ["Routing", "Step", "expected_time", "explain", "families", "gpus", "load_gpu", "models"]
__all__ += ["predict", "predict_model", "predict_table", "rank", "rank_routing", "triton_perf_model"]


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that `import gemm_model` itself stays a matter of milliseconds.
    if name == "gpus":
        return import_module("gemm_model.config").gpu_names
    if name == "__version__":
        return _installed_version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gemm_model.errors import MissingExtraError

    try:
        found = globals()[name] = getattr(import_module(f"gemm_model.{_HOMES[name]}"), name)
    except MissingExtraError as missing:
        return _absent(name, missing)
    return found


def _absent(name: str, missing: Exception) -> Any:
    """What stands for a name whose extra is not installed: it says so once it is called."""

    def absent(*_: Any, **__: Any) -> Any:
        raise missing

    absent.__name__ = name
    return absent


def _installed_version() -> str:
    """The version of the installed package, which comes from its tag; '0+unknown' for a bare source tree."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = globals()["__version__"] = version("gemm-model")
    except PackageNotFoundError:
        return "0+unknown"
    return found
