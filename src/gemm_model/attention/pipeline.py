"""The recurrences of the attention pipeline: one producer, alternating consumer groups, shared units.

For key block j = 0, 1, ... of a tile, consumer groups g = 0 .. G-1 and rings of M slots for K and for V.
Loads are issued one after the other, in the order K0 K1 V0 K2 V1 ... where groups overlap, else K0 V0 K1 ...:

    L(x)     = max(L(previous) + T(previous), slot of x free)            full(x) = L(x) + T(x) + latency
    slot of K(j) free when all groups have ended QK(j-M), of V(j) when they have seen PV(j-M) end

The tensor cores run products in the order of their issue, the SFU runs exponentials in the order of arrival.
Named barriers pass a turn from group to group. In its turn j, a group that overlaps issues QK(j), then PV(j-1):

    turn(j, g) = max(ready(j-1, g), full(K j), passed on by the group before)
    QK(j, g)   = max(turn, tensor cores free) + T_QK         PV(j-1, g) = max(QK(j, g), full(V j-1)) + T_PV
    E(j, g)    = max(max(QK(j, g), PV issued) + T_softmax, SFU free) + T_exponentials
    ready(j, g) = max(E(j, g), PV(j-1, g)) + T_correction     a group waits for PV after its softmax

Without overlap the turn is PV(j-1), then QK(j), and PV waits for the softmax of its own block. These are Liu and
Grover's equations 1 to 3 for G consumers, two products and two shared units. The event simulation
(`timeline/attention.py`) shares none of this code.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gemm_model.core.elementwise import Values, maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Times of one key block [clk]; scalars or arrays of one length. All but loads are of one group."""

    qk: Values
    pv: Values
    softmax: Values = 0.0
    """Instructions on the group's own lanes: masks, maxima, scales, sums, conversions."""
    exponentials: Values = 0.0
    """Time on the SFU, which the groups share."""
    correction: Values = 0.0
    """Rescaling O, before the group is ready for its next turn."""
    load_k: Values = 0.0
    load_v: Values = 0.0
    latency: Values = 0.0
    """Delay from the end of a load to the arrival of its data; the producer does not wait for it."""


@dataclass(slots=True)
class _Sm:
    """One CTA on its SM: producer, rings, shared units, turns and groups; all times in clk."""

    times: StageTimes
    slots: dict[str, deque[Values]]
    """Times at which each slot of an operand's ring becomes free, the next slot first."""
    ready: list[Values]
    producer: Values = 0.0
    tensor: Values = 0.0
    sfu: Values = 0.0
    turn: Values = 0.0
    v_full: Values = 0.0

    def loaded(self, operand: str, length: Values) -> Values:
        """Time at which the next block of an operand has arrived."""
        self.producer = maximum(self.producer, self.slots[operand][0]) + length
        return self.producer + self.times.latency

    def product(self, issued: Values, length: Values) -> Values:
        self.tensor = maximum(issued, self.tensor) + length
        return self.tensor

    def softmax(self, qk_end: Values) -> Values:
        self.sfu = maximum(qk_end + self.times.softmax, self.sfu) + self.times.exponentials
        return self.sfu


def tile_ends(times: StageTimes, *, groups: int, stages: int, overlap: bool, blocks: int) -> list[Values]:
    """Times from the first load to the last P V of tiles of 1, 2, ... `blocks` key blocks [clk]."""
    slots: dict[str, deque[Values]] = {operand: deque([0.0] * stages, maxlen=stages) for operand in "kv"}
    sm = _Sm(times, slots, ready=[0.0] * groups)
    turns = _overlapping_turns if overlap else _alternating_turns
    return [turns(sm, block) for block in range(blocks)]


def _overlapping_turns(sm: _Sm, block: int) -> Values:
    """QK(j) and PV(j - 1) of each group in its turn; the end of the last PV if no key block follows."""
    times = sm.times
    k_full = sm.loaded("k", times.load_k)
    v_full = sm.loaded("v", times.load_v) if block else 0.0
    for group, ready in enumerate(sm.ready):
        issued = maximum(maximum(ready, k_full), sm.turn)
        seen = sm.product(issued, times.qk)
        if not block:
            sm.ready[group] = sm.softmax(seen)
            continue
        sm.turn = maximum(issued, v_full)
        pv_end = sm.product(sm.turn, times.pv)
        seen = maximum(seen, sm.turn)
        done = maximum(sm.softmax(seen), pv_end)
        sm.ready[group] = done + times.correction
    sm.slots["k"].append(seen)
    if block:
        sm.slots["v"].append(done)
    next_v = maximum(sm.producer, sm.slots["v"][0]) + times.load_v
    return _last_products(sm, next_v + times.latency)


def _alternating_turns(sm: _Sm, block: int) -> Values:
    """PV(j - 1), then QK(j) of each group in its turn; the end of the last PV if no key block follows."""
    times = sm.times
    k_full = sm.loaded("k", times.load_k)
    for group, ready in enumerate(sm.ready):
        pv_end = sm.product(maximum(maximum(ready, sm.v_full), sm.turn), times.pv) if block else sm.turn
        sm.turn = maximum(pv_end, k_full)
        qk_end = sm.product(sm.turn, times.qk)
        sm.ready[group] = sm.softmax(qk_end) + times.correction
    sm.slots["k"].append(qk_end)
    if block:
        sm.slots["v"].append(pv_end)
    sm.v_full = sm.loaded("v", times.load_v)
    return _last_products(sm, sm.v_full)  # a turn begins no later than the products in it


def _last_products(sm: _Sm, v_full: Values) -> Values:
    """The end of the last PV if no key block follows; leaves `sm` unchanged."""
    tensor = sm.tensor
    for ready in sm.ready:
        tensor = maximum(maximum(ready, v_full), tensor) + sm.times.pv
    return tensor
