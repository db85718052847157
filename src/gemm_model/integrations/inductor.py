"""`install()`: Inductor's choices for mm, addmm, bmm, baddbmm and scaled mm are predicted, without timing.

Written for torch 2.11 to 2.15. The seams are Inductor's own: `torch._inductor.config.inductor_choices_class`,
`InductorChoices` and `torch._inductor.lookup_table`. Whatever goes wrong, Inductor chooses as it would alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from typing import Any

import numpy as np

from gemm_model import __version__
from gemm_model.choice.selection import Ranker
from gemm_model.config import read_toml
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import batch_of
from gemm_model.core.gpu import GpuSpec, as_gpu, gpu_of_device
from gemm_model.core.problem import GemmProblem
from gemm_model.core.sizes import size_of
from gemm_model.errors import InputError, importing
from gemm_model.integrations import stand_aside
from gemm_model.integrations.triton import config_from, fits
from gemm_model.kernels.feasibility import runnable_mask
from gemm_model.kernels.registry import TORCH_FAMILY, family_of

with importing("the choices for Inductor need torch 2.11: pip install 'gemm-model[torch]'"):
    import torch

    from gemm_model.integrations.torch_operators import work_of
try:
    from torch._inductor import config as inductor_config
    from torch._inductor.choices import InductorChoices
    from torch._inductor.lookup_table import LookupTableChoices
    from torch._inductor.virtualized import V
except ImportError:  # another torch: `require_seams` says so
    inductor_config = LookupTableChoices = V = None
    InductorChoices = object

log = logging.getLogger(__name__)

TORCH_VERSIONS = "2.11 to 2.15"
INDUCTOR = f"to Inductor of torch {torch.__version__} (we know {TORCH_VERSIONS})"
SEAMS = ("_finalize_template_configs", "get_template_configs", "get_conv_configs", "_need_to_fix_layout")
"""Methods of Inductor's choices that are replaced."""

OPERATORS = read_toml("other_names")["inductor_operators"]
"""Operators that are ranked, by Inductor's name: their operands, as `torch_operators` calls them."""
SCALED_TMA = "triton::scaled_mm_device_tma_"
PERSISTENT = ("triton::mm_persistent_tma", f"{SCALED_TMA}epilogue_scaling", f"{SCALED_TMA}main_loop_scaling")
TRITON_TEMPLATES = ("triton::mm", "triton::bmm", *PERSISTENT)
SPLIT_TEMPLATE = "decompose_k"
EXTERN = "aten::"
EXTERN_OF = {"mm": "aten::mm", "addmm": "aten::bias_addmm", "bmm": "aten::bmm", "baddbmm": "aten::baddbmm"}
"""What the libraries' choice is called in a lookup table."""
REGIME: Mapping[str, str] = {"regime": "graph", "l2": "written"}
"""A compiled model's kernels follow each other, and the one before has written the first operand."""
SHAPE_OF = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps", "k_split")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a matrix multiplication: a template of Inductor and its parameters."""

    template: str
    parameters: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, template: str, parameters: Mapping[str, Any]) -> Way:
        known = tuple((name, parameters[name]) for name in SHAPE_OF if name in parameters)
        return cls(template, () if template.startswith(EXTERN) else known)

    @property
    def known(self) -> bool:
        return self.template.startswith(EXTERN) or self.template in (*TRITON_TEMPLATES, SPLIT_TEMPLATE)


class WayTimes:
    """Predicts what each of Inductor's ways to run a problem takes on one GPU."""

    def __init__(self, gpu: GpuSpec | str) -> None:
        self.gpu = as_gpu(gpu)
        self.library = Ranker(self.gpu, family=TORCH_FAMILY, options=REGIME)
        self.triton = family_of("triton", self.gpu)

    def predict_us(self, problem: GemmProblem, ways: Sequence[Way]) -> list[float]:
        """Times in us, infinite for a way that cannot run."""
        times = dict.fromkeys(ways, float("inf"))
        triton = [way for way in ways if way.template in TRITON_TEMPLATES]
        times |= zip(triton, self._triton_us(problem, triton), strict=True)
        for way in ways:
            if way.template.startswith(EXTERN):
                times[way] = self.library.call(problem).time_us
            elif way.template == SPLIT_TEMPLATE:
                times[way] = self._split_us(problem, int(dict(way.parameters)["k_split"]))
        return [times[way] for way in ways]

    def _split_us(self, problem: GemmProblem, parts: int) -> float:
        """A batched product of the parts of K into fp32, and a kernel that adds them up."""
        fp32 = GemmProblem.of(1, 1, 1, "fp32").out_dtype
        split = replace(
            problem, k=problem.k // parts, batch=parts, out_dtype=fp32, epilogue=None, batch_strides=None
        )
        elements = problem.m * problem.n * problem.batch
        moved_bytes = elements * (parts * fp32.bits + problem.out_dtype.bits) / 8.0
        summed_us = moved_bytes / self.gpu.dram_bytes_per_us
        return self.library.call(split).time_us + summed_us + self.gpu.graph_launch_us

    def _triton_us(self, problem: GemmProblem, ways: Sequence[Way]) -> list[float]:
        if not ways:
            return []
        fast, known = problem.a_dtype.bits == 8, [dict(way.parameters) for way in ways]
        configs = [replace(config_from(each), warps=each["num_warps"], fast_accum=fast) for each in known]
        batch = batch_of([(problem, config) for config in configs])
        found = runnable_mask(batch, self.gpu, self.triton)
        persistent = np.array([way.template in PERSISTENT for way in ways])
        for row, each in enumerate(known):
            stored, warps = bool(persistent[row]), int(each["num_warps"])
            found[row] &= fits(batch[row : row + 1], warps, self.gpu, output_tile_in_smem=stored)
        times_us = np.full(len(ways), np.inf)
        if found.any():
            times_us[found] = self.library.model.predict_batch(batch[found]).runtime_us
        numbers = room_numbers("integrations")
        factors = np.where(persistent, numbers.inductor_persistent, numbers.inductor_pointers)
        return [float(time_us) for time_us in times_us * factors]


@cache
def way_times(gpu: str) -> WayTimes:
    return WayTimes(gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoices:
    """Makes the handler of Inductor's choices; its fields are part of the key of Inductor's caches."""

    gpu: str
    confirm: int = 1
    tunes_otherwise: bool = False
    """Whether Inductor was to time all candidates where none is ranked."""
    version: str = ""

    def __call__(self) -> InductorChoices:
        return GemmModelChoices(self)


class GemmModelChoices(InductorChoices):  # type: ignore[misc]
    """Of the candidates that Inductor offers for a product those that are predicted to be the fastest."""

    def __init__(self, settings: ModelChoices) -> None:
        super().__init__()
        self.settings = settings
        self._chosen: dict[GemmProblem, tuple[Way, ...]] = {}

    def uuid(self) -> bytes:
        """What Inductor's caches tell choices apart by."""
        return repr(self.settings).encode()

    def _finalize_template_configs(
        self,
        template_choices: Any,
        kernel_inputs: Any,
        templates: Any,
        op_name: str,
        kwarg_overrides: Any = None,
    ) -> list[Any]:
        given = (template_choices, kernel_inputs, templates, op_name, kwarg_overrides)
        every = list(super()._finalize_template_configs(*given))
        if kernel_inputs.device_type != "cuda" or not every:
            return every
        try:
            return self._fastest(every, kernel_inputs, op_name)
        except Exception as reason:  # a compile never fails because of a prediction
            stand_aside(f"{op_name} {INDUCTOR}", reason)
        externs = [ktc for ktc in every if _is_extern(ktc)]
        return every if self._tunes or not externs else externs[:1]

    @property
    def _tunes(self) -> bool:
        """Whether Inductor times what is not ranked."""
        return bool(inductor_config.max_autotune or self.settings.tunes_otherwise)

    def get_conv_configs(self, device_type: str | None = "cuda") -> Any:
        """Templates for convolutions where they would be timed without us; else the library's stays alone."""
        return super().get_conv_configs(device_type) if self._tunes else lambda *_, **__: iter(())

    def get_template_configs(
        self, kernel_inputs: Any, templates: Any, op_name: str, kwarg_overrides: Any = None
    ) -> list[Any]:
        given = (kernel_inputs, templates, op_name, kwarg_overrides)
        found = super().get_template_configs(*given)
        if found or kernel_inputs.device_type != "cuda" or op_name not in OPERATORS:
            return list(found)
        try:
            chosen = self._chosen.get(problem_of(kernel_inputs, op_name), ())
        except Exception:  # not ranked, as was said when it was to be
            chosen = ()
        comes_later = all(template.uid.startswith(EXTERN) for template in templates)
        if comes_later or any(way.template.startswith(EXTERN) for way in chosen):
            return []
        # Inductor could not make the kernel that was chosen: all that it has.
        return list(InductorChoices().get_template_configs(*given))

    def _need_to_fix_layout(self, adjusted_choices: list[Any], op_name: str) -> bool:
        """As without tuning where the library's mm alone is left: a free layout suits what follows.

        A fixed one suits addmm, whose bias the library takes as a vector (measured on an H200).
        """
        alone = op_name == "mm" and all(map(_is_extern, adjusted_choices))
        tunes = inductor_config.max_autotune_gemm and not (alone and not self.settings.tunes_otherwise)
        with inductor_config.patch(max_autotune_gemm=tunes):
            return bool(super()._need_to_fix_layout(adjusted_choices, op_name))

    def _fastest(self, every: list[Any], kernel_inputs: Any, op_name: str) -> list[Any]:
        """The candidates to keep. Torch 2.13 asks for addmm's in two calls, the library's first."""
        if op_name not in OPERATORS:
            raise InputError("not a product that is ranked")
        problem = problem_of(kernel_inputs, op_name)
        externs = [ktc for ktc in every if _is_extern(ktc)]
        if externs or problem not in self._chosen:
            later = self._later(kernel_inputs, op_name) if len(externs) == len(every) else []
            self._chosen[problem] = self._ranked([*every, *later], problem)
        by_way = {_way(ktc): ktc for ktc in reversed(every)}
        return [by_way[way] for way in self._chosen[problem] if way in by_way]

    def _ranked(self, offered: Sequence[Any], problem: GemmProblem) -> tuple[Way, ...]:
        ways = [way for way in dict.fromkeys(map(_way, offered)) if way.known]
        externs = [way for way in ways if way.template.startswith(EXTERN)]
        ways = [way for way in ways if way not in externs[1:]]
        predicted_us = way_times(self.settings.gpu).predict_us(problem, ways)
        if not np.isfinite(predicted_us).any():
            raise InputError("no candidate that is known can run")
        order = in_order(ways, predicted_us)[: self.settings.confirm]
        log.debug("%s: %s", problem.sizes, [(ways[place], predicted_us[place]) for place in order])
        return tuple(ways[place] for place in order if np.isfinite(predicted_us[place]))

    def _later(self, kernel_inputs: Any, op_name: str) -> list[Any]:
        """Candidates of Triton's template that Inductor will ask for after the library's."""
        from torch._inductor.kernel.mm import mm_template
        from torch._inductor.utils import use_triton_template

        tunes = inductor_config.max_autotune or inductor_config.max_autotune_gemm
        layout = kernel_inputs.output_layout()
        if op_name != "addmm" or not tunes or not use_triton_template(layout, check_max_autotune=False):
            return []
        return list(self.get_ktc(kernel_inputs, mm_template, op_name))


def require_seams() -> None:
    """Raises InputError where this torch's Inductor does not ask for choices as those that are known."""

    def asked(owner: type) -> list[list[str]]:
        return [[*signature(getattr(owner, name, len)).parameters] for name in SEAMS]

    known = asked(InductorChoices) == asked(GemmModelChoices)
    if not known or not hasattr(inductor_config, "inductor_choices_class"):
        raise InputError(f"torch {torch.__version__} takes no choices; written for torch {TORCH_VERSIONS}")


def in_order(ways: Sequence[Way], predicted_us: Sequence[float]) -> list[int]:
    """Positions of the ways, the first to be taken first.

    A template takes the library's place where it stays faster at the far end of its error band.
    """
    band = 1.0 + room_numbers("integrations").inductor_band
    slack = [1.0 if way.template.startswith(EXTERN) else band for way in ways]
    return [int(place) for place in np.argsort(np.multiply(predicted_us, slack), kind="stable")]


def _way(ktc: Any) -> Way:
    return Way.of(ktc.template.uid, ktc.params.to_kwargs())


def _is_extern(ktc: Any) -> bool:
    return bool(ktc.template.uid.startswith(EXTERN))


def problem_of(kernel_inputs: Any, op_name: str) -> GemmProblem:
    """The product of an operator's inputs, by hints where sizes are symbolic. Raises InputError."""
    shapes, strides = kernel_inputs.shapes_hinted(), kernel_inputs.strides_hinted()
    layouts = zip(shapes, strides, kernel_inputs.dtypes(), strict=True)
    tensors = (torch.empty_strided(*layout, dtype=dtype, device="meta") for *layout, dtype in layouts)
    # A scaled product's bias is optional.
    bound: dict[str, Any] = dict(zip(OPERATORS[op_name], tensors, strict=op_name != "scaled_mm"))
    bound["out_dtype"] = kernel_inputs.out_dtype()
    added = bound["self"] if op_name in ("addmm", "baddbmm") else None
    if added is not None and added.dim() == 2 and added.stride(0) == 0:
        bound["self"] = added[:1]
    found = work_of("_scaled_mm" if op_name == "scaled_mm" else op_name, bound)
    if not found or not isinstance(found[0][1], GemmProblem):
        raise InputError("an empty product")
    return found[0][1]


def lookup_table(
    program: Callable[..., Any], inputs: Sequence[Any], gpu: GpuSpec | str, *, confirm: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """`torch._inductor.config.lookup_table.table` for a program on a GPU that need not be here.

    `inputs` may be meta or fake tensors. Of each product the `confirm` ways of least predicted time; keys
    hold no device. The program is traced as Inductor traces it, without gradients. Raises InputError as
    `require_seams`.
    """
    require_seams()
    times = WayTimes(gpu)
    table: dict[str, list[dict[str, Any]]] = {}
    for traced in _traced_products(program, inputs):
        problem = problem_of(traced, traced.op_name)
        ways = _offered(traced, problem)
        predicted_us = times.predict_us(problem, ways)
        order = in_order(ways, predicted_us)[: size_of("confirm", confirm)]
        key = f"{LookupTableChoices._generate_kernel_inputs_key(traced)}+{traced.op_name}"
        table[key] = [_entry(ways[place], problem) for place in order]
    return table


def _offered(traced: TracedInputs, problem: GemmProblem) -> list[Way]:
    """The library's call, and Triton's template with the sizes that Inductor has for it."""
    from torch._inductor.template_heuristics.triton import CUDAConfigHeuristic

    template = "triton::bmm" if traced.op_name in ("bmm", "baddbmm") else "triton::mm"
    ways = [Way.of(EXTERN_OF[traced.op_name], {})]
    if traced.op_name == "addmm" and traced.strides_hinted()[0][0] != 0:
        ways = [Way.of("aten::addmm", {})]
    for found in CUDAConfigHeuristic().mm_configs:
        block = {"BLOCK_M": found.block_m, "BLOCK_N": found.block_n, "BLOCK_K": found.block_k, "GROUP_M": 8}
        if problem.m >= found.block_m and problem.n >= found.block_n and problem.k >= found.block_k:
            block |= {"num_stages": found.num_stages, "num_warps": found.num_warps}
            ways.append(Way.of(template, block))
    return ways


def _entry(way: Way, problem: GemmProblem) -> dict[str, Any]:
    """A row of Inductor's lookup table."""
    parameters = dict(way.parameters)
    if way.template in TRITON_TEMPLATES:
        even = problem.k % parameters["BLOCK_K"] == 0
        parameters |= {"EVEN_K": even, "ALLOW_TF32": False, "USE_FAST_ACCUM": False, "ACC_TYPE": "tl.float32"}
    return {"template_id": way.template, **parameters}


@dataclass(frozen=True, slots=True)
class TracedInputs:
    """The operands of a traced product, as `LookupTableChoices` and `problem_of` read those of a compile."""

    op_name: str
    tensors: tuple[Any, ...]
    _scalars: Mapping[str, Any]
    out: Any

    def dtypes(self) -> tuple[Any, ...]:
        return tuple(tensor.dtype for tensor in self.tensors)

    def shapes_hinted(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(map(int, tensor.shape)) for tensor in self.tensors)

    def strides_hinted(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(map(int, tensor.stride())) for tensor in self.tensors)

    def out_dtype(self) -> Any:
        return self.out.dtype


def _traced_products(program: Callable[..., Any], inputs: Sequence[Any]) -> list[TracedInputs]:
    """The products of a program after Inductor's decompositions."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    found: list[TracedInputs] = []

    def read(module: Any, _: Sequence[Any]) -> Any:
        for node in module.graph.nodes:
            name = getattr(getattr(node.target, "_schema", None), "name", "").removeprefix("aten::")
            if name in OPERATORS:
                tensors = tuple(node.args[place].meta["val"] for place in range(len(OPERATORS[name])))
                found.append(_read_inputs(name, tensors, node))
        return module.forward

    backend = aot_autograd(fw_compiler=read, decompositions=select_decomp_table())
    with torch.no_grad():
        torch.compile(program, backend=backend)(*inputs)
    return found


def _read_inputs(name: str, tensors: tuple[Any, ...], node: Any) -> TracedInputs:
    """Inductor expands what addmm adds to the output's shape."""
    out = node.meta["val"]
    scalars: dict[str, Any] = {}
    if name in ("addmm", "baddbmm"):
        scalars = {each: node.kwargs.get(each, 1) for each in ("alpha", "beta")}
        tensors = (tensors[0].expand(out.shape), *tensors[1:])
    return TracedInputs(name, tensors, scalars, out)


def install(gpu: GpuSpec | str | None = None, *, confirm: int = 1) -> bool:
    """Let predictions make Inductor's choices for products; whether they do from now on.

    `gpu` None stands for the card of this machine. Inductor times the `confirm` candidates of least
    predicted time where that is more than one. Raises InputError for a `confirm` below 1 or an unknown GPU
    that was named; with an unknown card, or a torch whose seams differ, one line is logged and nothing set.
    """
    confirm = size_of("confirm", confirm)
    name = as_gpu(gpu).name if gpu is not None else None
    try:
        name = name or gpu_of_device(torch.cuda.get_device_name())
        require_seams()
        uninstall()
        made = ModelChoices(
            gpu=name, confirm=confirm, tunes_otherwise=inductor_config.max_autotune_gemm, version=__version__
        )
        inductor_config.inductor_choices_class = made
        inductor_config.max_autotune_gemm = True
        V.set_choices_handler(made())
    except Exception as reason:  # no GPU, an unknown card, another torch: the program goes on as without
        stand_aside(f"the choices {INDUCTOR}", reason)
        return False
    return True


def uninstall() -> None:
    """Inductor chooses by itself again."""
    made = getattr(inductor_config, "inductor_choices_class", None)
    if isinstance(made, ModelChoices):
        inductor_config.inductor_choices_class = None
        inductor_config.max_autotune_gemm = made.tunes_otherwise
        V.set_choices_handler(InductorChoices())
