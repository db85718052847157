"""A small trace in IKET's format, made by hand: one CTA on SM 7, a producer and one warpgroup, two tiles."""

import json

STRINGS = ["tma_load", "mma", "epilogue", "wait_data", "wait_stage", "fetch_wait", "epi_store_issue", "mine"]
PRODUCER, CONSUMER = 4, 0
START = 1_000_000


def location(warp, cta=(0, 0, 0), sm=7):
    return {"ctaId": list(cta), "gpcId": 0, "smId": sm, "tpcId": sm // 2, "warpId": warp}


def sample(launches=1):
    """Two tiles of two k tiles, a ring of three stages; ns after START."""
    spans = [
        # producer
        ("tma_load", 0, 64, 320),
        ("wait_stage", 0, 64, 96),
        ("wait_stage", 0, 128, 160),
        ("tma_load", 0, 352, 992),
        ("wait_stage", 0, 352, 384),
        ("wait_stage", 0, 416, 960),
        # the consumer's first warp: waits for its data, computes, stores
        ("fetch_wait", 1, 0, 32),
        ("mma", 1, 96, 800),
        ("wait_data", 1, 96, 512),
        ("wait_data", 1, 640, 672),
        ("epilogue", 1, 832, 992),
        ("epi_store_issue", 1, 928, 960),
        ("mine", 1, 992, 1024),
        ("mma", 1, 1024, 1344),
        ("wait_data", 1, 1024, 1024),
        ("wait_data", 1, 1152, 1152),
        ("epilogue", 1, 1344, 1504),
    ]
    launch = {
        "gridId": 3, "kernelName": "kernel_cutlass_gemm", **{f"gridDim{axis}": 1 for axis in "XYZ"},
        "blockDimX": 64, "blockDimY": 1, "blockDimZ": 1, "markers": [],
        "ranges": [
            {
                "rangeId": 1, "rangeNameIdx": STRINGS.index(name), "rangeColor": -1, "rangeScope": 0,
                "rangeType": 2, "startTs": START + start, "endTs": START + end, "internalEvents": [],
                "warpLocIdxs": [place, place],
            }
            for name, place, start, end in spans
        ],
        "warpLifetimes": [
            {"locIdx": 0, "startTs": START, "endTs": START + 1024},
            {"locIdx": 1, "startTs": START, "endTs": START + 1600},
        ],
    }  # fmt: skip
    other = {**launch, "kernelName": "fill", "ranges": [], "warpLifetimes": []}
    return {
        "stringTable": STRINGS,
        "locationTable": [location(PRODUCER), location(CONSUMER)],
        "launches": [other, *[launch] * launches],
        "graphLaunches": {},
    }


def write_sample(path, document=None):
    path.write_text(json.dumps(sample() if document is None else document))
    return path


def as_documented(document):
    """The same with names and places in place of their positions, as NVIDIA's documentation shows it."""
    strings, places = document["stringTable"], document["locationTable"]
    launches = []
    for launch in document["launches"]:
        ranges = [
            {
                "rangeName": strings[found["rangeNameIdx"]],
                "startTs": found["startTs"],
                "endTs": found["endTs"],
                "warpLocs": [places[found["warpLocIdxs"][0]]],
            }
            for found in launch["ranges"]
        ]
        lifetimes = [
            {"startTs": life["startTs"], "endTs": life["endTs"], "warpLocation": places[life["locIdx"]]}
            for life in launch["warpLifetimes"]
        ]
        launches.append({**launch, "ranges": ranges, "warpLifetimes": lifetimes})
    return {"launches": launches}
