"""Random machines and workloads with whole, small times, degenerate ones among them."""

from hypothesis import strategies as st

from gemm_model.pipeline.machine import CONSUMERS, PipelineMachine, StepTimes, Workload

# Zero often: free loads, free math, no epilogue.
short = st.one_of(st.just(0.0), st.integers(0, 9).map(float))
long = st.one_of(st.just(0.0), st.integers(0, 60).map(float))

machines = st.builds(
    PipelineMachine,
    consumers=st.sampled_from(CONSUMERS),
    dma_warps=st.sampled_from((1, 2)),
    counts_last_math=st.booleans(),
)


@st.composite
def workloads(draw, max_waves=20, max_steps=40):
    load_a, load_b, math = draw(short), draw(short), draw(short)
    ragged = draw(st.sampled_from((0.0, 0.3, 1.0)))
    fewer_sms = draw(st.sampled_from((0.5, 1.0)))

    def step(load_share, share):
        return StepTimes(
            load_a=float(round(load_a * load_share * share)),
            load_b=float(round(load_b * load_share * share)),
            math=float(round(math * share)),
        )

    return Workload(
        waves=float(draw(st.integers(1, max_waves))),
        steps=float(draw(st.one_of(st.integers(1, 3), st.integers(1, max_steps)))),
        stages=float(draw(st.integers(1, 6))), full=step(1.0, 1.0), full_last=step(1.0, ragged),
        tail=step(fewer_sms, 1.0), tail_last=step(fewer_sms, ragged), latency=draw(long),
        epilogue=draw(long), init=draw(short),
    )  # fmt: skip
