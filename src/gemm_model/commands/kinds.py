"""Options of the kinds of problem: epilogues, groups, routings, scales, convolutions."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gemm_model.choice.expected import ExpectedTime, expected_time
from gemm_model.commands import common
from gemm_model.core.batch_strides import BatchStrides
from gemm_model.core.block_scaling import BlockScaling
from gemm_model.core.epilogue import Epilogue
from gemm_model.core.fields import number_text
from gemm_model.core.grouped import GroupedGemm
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.core.routing import Routing
from gemm_model.core.settings import Settings
from gemm_model.errors import InputError

BATCH = ("broadcast", "batch_strides")
KINDS = ("epilogue", "groups", "group_layout", "capacity", "block_scaling", "conv", *BATCH)
ROUTING = ("experts", "tokens", "top_k", "routing", "routings", "seed")
OPTIONS = (*KINDS, *ROUTING)


def routing(args: argparse.Namespace) -> Routing | None:
    """The routing that the options describe, or None."""
    if "experts" not in args.given and "tokens" not in args.given:
        common.refuse_given(args, ROUTING, "without --experts and --tokens")
        return None
    for name in ("experts", "tokens"):
        if name not in args.given:
            raise InputError(f"--{name} is missing; expected --experts and --tokens")
    common.refuse_given(args, ("groups", "group_layout", "capacity", "conv"), "with --experts")
    return Routing.parse(args.routing, experts=args.experts, tokens=args.tokens, top_k=args.top_k)


def problem(args: argparse.Namespace) -> GemmProblem:
    """The problem that the options describe; with a routing, m is the number of all rows and groups are
    missing.
    """
    if args.conv is not None:
        sizes = ("m", "n", "k", "batch", "b_dtype")
        others = (*BATCH, "groups", "group_layout", "capacity", "block_scaling")
        common.refuse_given(args, (*sizes, *others), "with --conv")
        found = GemmProblem.of_conv(args.conv, args.dtype, args.out_dtype)
    else:
        found = _product(args)
    if args.epilogue is None:
        return found
    epilogue = Epilogue.parse(args.epilogue)
    if epilogue.quantized and args.out_dtype is None:
        found = replace(found, out_dtype=GemmProblem.of(1, 1, 1, epilogue=epilogue).out_dtype)
    return replace(found, epilogue=epilogue)


def _product(args: argparse.Namespace) -> GemmProblem:
    """The GEMM without its epilogue; sizes given by groups or a routing may be missing."""
    routed, groups = routing(args), None
    if args.groups is None:
        common.refuse_given(args, ("group_layout", "capacity"), "without --groups")
    else:
        groups = GroupedGemm.parse(args.groups, args.group_layout, args.capacity)
    if args.m is None and groups is not None:
        args.m = groups.total_rows
    if routed is not None:
        args.m = routed.rows if args.m is None else args.m
        if args.m != routed.rows:
            raise InputError(
                f"--m is {args.m}; expected the {routed.rows} rows of {args.tokens} tokens for {args.top_k} "
                "experts each"
            )
    if groups is not None and not groups.alike:
        args.n, args.k = args.n or max(groups.n), args.k or max(groups.k)
    scaling = None if args.block_scaling is None else BlockScaling.parse(args.block_scaling)
    plain = common.problem(args)
    return replace(
        plain,
        groups=groups,
        block_scaling=scaling,
        broadcast=args.broadcast or "",
        batch_strides=None if args.batch_strides is None else BatchStrides.parse(args.batch_strides),
    )


def expected(
    args: argparse.Namespace, chosen: Settings, problem: GemmProblem, config: KernelConfig
) -> ExpectedTime | None:
    """The expected time over random routings; None where tokens are not routed."""
    routed = routing(args)
    if routed is None:
        return None
    asked = {"count": args.routings, "seed": args.seed, "options": chosen.options}
    return expected_time(problem, routed, config, chosen.gpu, chosen.model, **asked)


def expected_fields(expected: Any) -> dict[str, Any]:
    """An `ExpectedTime` as fields of a result."""
    return {
        "expected_us": expected.mean_us,
        "p95_us": expected.p95_us,
        "longest_us": expected.longest_us,
        "routings": expected.routings,
    }


def expected_text(expected: Any) -> str:
    """An `ExpectedTime` as a sentence."""
    return (
        f"expected over {expected.routings} routings: {number_text(expected.mean_us)} us, 95 % within "
        f"{number_text(expected.p95_us)} us, all within {number_text(expected.longest_us)}; the routing in the middle:"
    )
