"""Scribbles over live segments: ``python scribbler.py RANKS SETTINGS``, then a line for each.

A line of stdin is "PATH SEED SECONDS"; PATH is /proc/PID/fd/N of a rank's mapping: any process of
the same user may open that. Answers "ready", and, when done, how often it wrote. Half of the values
are numbers that other words of the segment have or nearly have, so that they get past
comparisons of calls and signatures and reach what is used as a length.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
import sys
import time

import mpi4py

mpi4py.rc.initialize = False  # the child of a rank is no rank

import smcoll  # noqa: E402
from smcoll.segment import memory_cost  # noqa: E402

LINE = 128


def places(ranks: int, settings: dict):
    """Ranges of words to write into: control pages and the beginning of the streams, by rank."""
    cost = memory_cost(smcoll.Config(**settings), ranks)
    stride = cost["mapped_per_rank"]
    rank_0 = cost["mapped"] - ranks * stride
    cells = 128 * ranks + 256 * 8 * max(1, ranks - 1)
    for rank in range(ranks):
        first = rank_0 + rank * stride
        yield range(first, first + cost["control_per_rank"], LINE)
        streams = first + cost["streams_at"]
        yield range(streams, streams + cells, LINE)
    # A little of the data, and of the header.
    yield range(0, 256, LINE)
    data = rank_0 + cost["data_at"]
    yield range(data, data + cost["data_per_rank"], 65536)


def wild(rng: random.Random, memory: mmap.mmap, known: list[int]) -> int:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice((0, 1, 15, 17, 65, 90, 200, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63,
                           (1 << 64) - 1, (1 << 64) - 8, (1 << 64) - 16))
    if kind < 0.5:
        return rng.getrandbits(rng.choice((4, 8, 12, 16, 24, 48, 64)))
    return (rng.choice(known) + rng.choice((-1, 0, 0, 1, 2, 8, 64, 100_000))) % (1 << 64)


def scribble(memory: mmap.mmap, rng: random.Random, ranges, seconds: float) -> int:
    end = time.monotonic() + seconds
    pause = rng.choice((0, 1e-5, 1e-4, 1e-3))  # rarely, and a segment lives through more calls
    written, known = 0, [0]
    while time.monotonic() < end:
        line = rng.choice(rng.choice(ranges))
        known = [*known[-50:], *struct.unpack_from("<8Q", memory, line)]
        # Mostly the length or the label alone: what stands before them then still compares equal.
        # (Words of a line: flag, call, signature, nbytes; then an object's label and bytes.)
        word = rng.choice((0, 1, 2, 3, 3, 3, 4, 5, 4, 5, 6, 7))
        struct.pack_into("<Q", memory, line + 8 * word, wild(rng, memory, known))
        written += 1
        if pause > 0:
            time.sleep(rng.expovariate(1 / pause))
    return written


def main() -> int:
    ranges = list(places(int(sys.argv[1]), json.loads(sys.argv[2])))
    for line in sys.stdin:
        path, seed, seconds = line.split()
        descriptor = os.open(path, os.O_RDWR)
        with mmap.mmap(descriptor, 0) as memory:
            print("ready", flush=True)
            print(scribble(memory, random.Random(int(seed)), ranges, float(seconds)), flush=True)
        os.close(descriptor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
