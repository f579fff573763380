"""The least time of a collective on a machine whose limits ``bench/limits.py`` measured.

``limits`` is everywhere what that script writes as ``"limits"`` of its JSON.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

# Every rank waits for every other one; in the rest one rank waits for another.
_EXCHANGES = ("allreduce", "allgather", "alltoall", "reduce_scatter")
# The v- and w-forms move as much on the average; see workloads.
_FORMS = {"gatherv": "gather", "scatterv": "scatter", "allgatherv": "allgather",
          "alltoallv": "alltoall", "alltoallw": "alltoall",
          "reduce_scatter_block": "reduce_scatter"}
_KNOWN = ("bcast", "reduce", "allreduce", "gather", "scatter", "allgather", "alltoall",
          "reduce_scatter", "scan", "exscan")


def read(file: Path) -> dict:
    """The limits of a file. ValueError where it is none of ``bench/limits.py``'s."""
    try:
        limits = json.loads(file.read_text())["limits"]
        processes_measured(limits)
        lower_bound(limits, "bcast", 8, 2)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} has no limits as bench/limits.py writes them: "
                         f"{type(error).__name__}: {error}") from None
    return limits


def lower_bound(limits: dict, collective: str, nbytes: int, ranks: int, *,
                statistic: str = "low") -> float | None:
    """The least time in µs that a call can take on the machine that ``limits`` is of.

    ``nbytes`` is the vector's size, or the block's, as `workloads` counts (not used for barriers);
    float64 for reductions. None where nothing is known: more ranks than cores were measured, fewer
    than 2 ranks, or an unknown collective.

    Each bound is necessary by itself and the greatest is returned; no algorithm need reach it. Of
    cores the nearest pair counts, of each figure the least repetition; with ``statistic="median"``
    the median: the limit as the machine mostly is, which a lucky measurement can beat.

    * Signals: in a barrier, an allreduce, an allgather, an alltoall or a reduce_scatter every rank
      waits for a write of every other, and all can write at once: the exchange of two lines. In the
      others one waits for another: half of a line's way there and back. (Calls in a row with the
      same root can overlap, and take less than that each.)
    * Transfer: whatever the algorithm, some rank must get bytes that another has just written
      (lines in Modified state, as in section 3.4 of Li, Hoefler & Snir 2013): the one-to-all
      figures of one reader, at the best rate of all sizes, because data may be passed in pieces.
      Data that stay unchanged from call to call, and are read from where they are, can be faster.
    * Work: what is copied or reduced on the rank that does most, source and destination in private
      memory, in cache as far as they fit; a source that comes in pieces leaves the cache to the
      destination (two passes of half the size, where these are faster).
    """
    collective = _FORMS.get(collective, collective)
    if not 2 <= ranks <= processes_measured(limits):
        return None
    one_way = min(row["us"][statistic] for row in limits["there_and_back"]) / 2
    exchange = min(row["us"][statistic] for row in limits["exchange"])
    if collective == "barrier":
        return exchange
    if collective not in _KNOWN:
        return None
    signal = exchange if collective in _EXCHANGES else one_way
    rate = min(row["us"][statistic] / row["bytes"] for row in limits["one_to_all"]
               if len(row["cpus"]) == 2)
    return max(signal, rate * received(collective, nbytes, ranks),
               least_work(limits, collective, nbytes, ranks, statistic))


def received(collective: str, nbytes: int, ranks: int) -> int:
    """Bytes of other ranks that some rank can't do without."""
    if collective in ("gather", "allgather", "alltoall"):
        return (ranks - 1) * nbytes
    return nbytes


def least_work(limits: dict, collective: str, nbytes: int, ranks: int, statistic: str) -> float:
    """µs of copying and reducing in private memory, on the rank that does most."""
    def copy(processes: int, size: float = nbytes) -> float:
        return pass_time(limits["copy"], size, processes, statistic)

    def reduction(processes: int, size: float = nbytes) -> float:
        return pass_time(limits["reduction"], size, processes, statistic)

    if collective == "bcast" or collective == "exscan":  # all but one fill their buffer
        return copy(ranks - 1)
    if collective == "scatter":
        return copy(ranks)
    if collective == "gather":  # the root alone fills its own
        return copy(1, ranks * nbytes)
    if collective in ("allgather", "alltoall"):
        return copy(ranks, ranks * nbytes)
    # The ranks - 1 reductions of the whole vector are spread evenly over all ranks.
    if collective == "reduce_scatter":
        return reduction(ranks, (ranks - 1) * nbytes)
    share = (ranks - 1) / ranks
    if collective == "scan":
        return share * reduction(ranks)
    if collective == "reduce":  # the root fills its buffer by copying or reducing
        return max(share * reduction(ranks), min(copy(1), reduction(1)))
    # Allreduce: a rank reduces everything, or its share, and copies the others' shares.
    return min((ranks - 1) * reduction(ranks), share * (reduction(ranks) + copy(ranks)))


def pass_time(rows: list[dict], nbytes: float, processes: int, statistic: str = "low") -> float:
    """µs of one pass over ``nbytes`` by ``processes`` at once, grows with ``nbytes``.

    Between measured sizes linear, outside proportional. Where not this many at once were measured,
    the next fewer, which share the machine's bandwidth among fewer.
    """
    known = max(count for row in rows if (count := len(row["cpus"])) <= processes)
    points = sorted(((row["bytes"], row["us"][statistic]) for row in rows
                     if len(row["cpus"]) == known), reverse=True)
    least = float("inf")
    curve = [(0, 0.0)]
    for measured, time_us in points:  # a smaller size never takes longer
        least = min(least, time_us)
        curve.insert(1, (measured, least))
    return min(interpolate(curve, nbytes), 2 * interpolate(curve, nbytes / 2))


def interpolate(curve: list[tuple[float, float]], position: float) -> float:
    """Linear between the points of a curve that starts at (0, 0), proportional after the last."""
    for (left, low), (right, high) in pairwise(curve):
        if position <= right:
            return low + (high - low) * (position - left) / (right - left)
    return curve[-1][1] * position / curve[-1][0]


def processes_measured(limits: dict) -> int:
    """The most processes that worked at once, each on a core of its own."""
    return max((len(row["cpus"]) for row in limits["copy"]), default=0)
