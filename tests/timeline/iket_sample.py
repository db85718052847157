"""A small trace in IKET's format, made by hand: one CTA on SM 7, a producer and one warpgroup, two tiles.

Each tile has two k tiles, the ring three stages. The producer's ranges come first, then those of the consumer's
first warp, which waits for its data, computes and stores. Times are ns; the launch starts at 1,000,000.
"""

import json
from pathlib import Path

SAMPLE = Path(__file__).with_suffix(".json").read_text()
STRINGS = json.loads(SAMPLE)["stringTable"]


def sample(launches=1):
    """The document, which tests may change, with the kernel launched so often."""
    document = json.loads(SAMPLE)
    other, kernel = document["launches"]
    return {**document, "launches": [other, *[kernel] * launches]}


def location(warp, cta=(0, 0, 0), sm=7):
    return {"ctaId": list(cta), "gpcId": 0, "smId": sm, "tpcId": sm // 2, "warpId": warp}


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
