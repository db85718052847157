"""What the pipeline's recurrences come to: closed forms that cost the same for any K.

A k step of index i = 1, 2, ... is loaded into slot i mod M of a ring buffer with M slots and multiplied:

    load start  X(i) = max(X(i-1) + load, Y(i-M) + math)
    math start  Y(i) = max(Y(i-1) + math, X(i) + load + latency)

`load` is how long a step keeps the producer busy, `latency` how much later its data are visible; loads of
further steps may be issued meanwhile. All functions take scalars and arrays alike, in any one unit of time.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Time = TypeVar("Time", float, NDArray[np.float64])


def time_per_k_step(load: Time, latency: Time, math: Time, stages: Time) -> Time:
    """Time between k steps once the pipeline is in its periodic regime.

    The largest mean weight of a cycle of the recurrence: the producer alone, the consumer alone, or a slot's
    round trip (load, latency, math), of which `stages` are under way at a time.
    """
    round_trip = (load + latency + math) / stages
    result: Time = np.maximum(np.maximum(load, math), round_trip)
    return result


def math_start(step: Time, load: Time, latency: Time, math: Time, stages: Time) -> Time:
    """When the math of a k step (1, 2, ...) starts, in a pipeline that starts empty at time 0.

    The longest path of the recurrence to Y(step): it crosses from loads to math once at least, and each
    further round trip adds load + latency + math in place of `stages` steps of the slower of the two. The
    gain is the same for each round trip, so that the longest path takes none or as many as fit.
    """
    slower = np.maximum(load, math)
    trips = np.floor((step - 1) / stages)
    gain = np.maximum(load + latency + math - stages * slower, 0.0)
    result: Time = load + latency + (step - 1) * slower + trips * gain
    return result
