"""Describe a GPU that the package does not know, and ask what it would run a GEMM with."""

from dataclasses import replace

from gemm_model import GemmProblem, load_gpu, rank

PROBLEM = GemmProblem.of(4096, 8192, 8192, "bf16")


def main() -> None:
    known = load_gpu("h200")
    # Half the SMs, half the L2, two thirds of the memory: a smaller part of the same generation.
    smaller = replace(
        known,
        name="half_h200",
        sm_count=known.sm_count // 2,
        l2_bytes=known.l2_bytes / 2,
        l2_read_gb_per_s=known.l2_read_gb_per_s / 2,
        dram_bus_bits=known.dram_bus_bits // 3 * 2,
        dram_read_gb_per_s=known.dram_read_gb_per_s / 3 * 2,
        resident_clusters={},
        validated=False,
    )
    for gpu in (known, smaller):
        best = rank(PROBLEM, gpu, top_k=1).best
        config, prediction = best.candidate.config, best.prediction
        kernel = f"{config.cta_m}x{config.cta_n}"
        print(f"{gpu.name}: {prediction.runtime_us:.1f} us with {kernel}, limited by {prediction.limiter}")
        for caveat in prediction.caveats:
            print(f"  caveat: {caveat}")


if __name__ == "__main__":
    main()
