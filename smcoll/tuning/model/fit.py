"""Parameters from measurements, and decision tables from measured times.

Rows are those of ``smcoll tune``'s ranks (cli/tune_job.py): ``ns`` of a primitive step, or ``us``
of a collective by one variant of one algorithm. Medians over rounds stand for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from smcoll.algorithms import ALGORITHMS
from smcoll.tuning import select
from smcoll.tuning.model import costs, machine
from smcoll.tuning.model.costs import Plan
from smcoll.tuning.model.parameters import LINE, Curve, Link, Parameters

# What entering a call and a phase cost is fitted to messages of at most this size.
CALIBRATED_UP_TO = 8 << 10
# What one rank alone copies: it sends and receives in one buffer, as in a Bcast.
MEASURED_IN_PLACE = ("copy alone", "read alone")
# A row of the table leaves the default only for a gain beyond the noise.
WORTH_A_CHANGE = 1.05


def tuned(heap: bool) -> set[str]:
    """Collectives with something to choose by size: an algorithm, a radix or the size of sections.

    ``heap``: ranks share heaps. A scatter's algorithm is one for all sizes, since its receivers
    need not know the size.
    """
    return {name for name, names in ALGORITHMS.items()
            if sum(heap or one != select.SHARED_HEAP for one in names) > 1} - {"scatter"}


def by_round(rows: Iterable[dict], keys: Sequence[str], value: str) -> dict[tuple, float]:
    """Median of ``value`` over rounds, for each combination of ``keys``."""
    found: dict[tuple, list[float]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(key) for key in keys), []).append(row[value])
    return {key: median(values) for key, values in found.items()}


# Distances of two states of a machine differ by more than this factor.
STATES_APART = 1.8
POINT = ("collective", "bytes", "algorithm", "fan_in", "fan_out", "section_bytes", "parameter",
         "level")


def in_one_state(rows: list[dict]) -> tuple[list[dict], dict]:
    """(rows of the state in which most were measured, what was left out).

    Virtual cores are moved about: an exchange of lines just before each measurement says how far
    apart they were. Where distances fall into two groups, parameters of the one can't predict
    times of the other. A point measured in the other state only stays.
    """
    known = sorted(row["distance_ns"] for row in rows if row["distance_ns"] > 0)
    facts: dict = {"rows": len(rows), "left_out": 0}
    if not known or known[-1] < known[0] * STATES_APART:
        return rows, facts | {"ns": median(known) if known else None}
    gap = max(itertools.pairwise(known), key=lambda pair: pair[1] / pair[0])
    middle = math.sqrt(gap[0] * gap[1])
    near = [ns for ns in known if ns < middle]
    far = [ns for ns in known if ns > middle]
    if gap[1] < gap[0] * 1.2 or min(len(near), len(far)) < len(known) // 50:
        return rows, facts | {"ns": median(known)}
    fewer, more = sorted((near, far), key=len)
    kept = [row for row in rows if (row["distance_ns"] < middle) == (more is near)]
    points = {tuple(row.get(key) for key in POINT) for row in kept}
    kept += [row for row in rows if tuple(row.get(key) for key in POINT) not in points]
    return kept, facts | {"left_out": len(rows) - len(kept), "ns": median(more),
                          "other_ns": median(fewer)}


# ---------------------------------------------------------------------- parameters


def primitives(rows: Iterable[dict]) -> dict[tuple[str, str, int], float]:
    """(parameter, level, bytes) -> ns."""
    return by_round((row for row in rows if "parameter" in row), ("parameter", "level", "bytes"),
                    "ns")


def fit(measured: dict[tuple[str, str, int], float], ranks: int, q: int, name: str,
        source: str) -> Parameters:
    """Parameters of a machine on which ``ranks`` ranks ran alone on their cores, q to a domain."""
    names = list(dict.fromkeys(level for kind, level, _ in measured if kind == "exchange"))

    def curve(kind: str, level: str, divide_by: float = 1.0, less: str = "") -> Curve:
        taken_off = curve(less, level) if less else None
        in_place = costs.BUFFERS["bcast"](ranks) / costs.OF_A_REDUCTION
        points = []
        for (parameter, where, nbytes), ns in sorted(measured.items(), key=lambda item: item[0][2]):
            if parameter == kind and where == level:
                size = nbytes * (in_place if kind in MEASURED_IN_PLACE else 1.0)
                line = ns * LINE / nbytes - (taken_off.at(size) if taken_off else 0.0)
                points.append((size, round(max(0.0, line) / divide_by, 4)))
        return Curve(tuple(points))

    links = {level: Link(
        level, round(measured["exchange", level, 0], 2), curve("read alone", level),
        curve("read together", level, q), curve("reduce alone", level, less="read alone"),
        curve("reduce together", level, less="read together"),
        curve("post together", level, less="reduce together"),
    ) for level in names}
    own = curve("copy alone", names[0])
    local = Link("local", own.points[0][1], own, curve("copy together", names[0], q))
    return Parameters(name, local, links, source,
                      evicted=curve("renew between", names[0], less="renew alone"))


def yield_of(measured: dict[tuple[str, str, int], float], ranks: int, cores: int) -> float:
    """ns of a turn for each rank on a core."""
    return round(measured["yield", "", 0] * cores / max(ranks, cores), 1)


def calibrate(here: machine.Machine, times: dict[tuple, float]) -> Parameters:
    """Parameters with ``call`` and ``step`` fitted to the short messages that were measured.

    These two are software: no primitive step has them. Least squares of relative errors over all
    algorithms, one ``call`` for each collective, one ``step`` for all.
    """
    bare = machine.Machine(here.parameters.changed(call={}, step=0.0), here.ranks, here.cores,
                           here.tiers, here.joined)
    one = machine.Machine(here.parameters.changed(call={}, step=1.0), here.ranks, here.cores,
                          here.tiers, here.joined)
    collectives = list(dict.fromkeys(key[0] for key in times))
    equations, values = [], []
    for key, us in times.items():
        collective, nbytes = key[0], key[1]
        if nbytes > CALIBRATED_UP_TO:
            continue
        without = predicted(bare, key)
        phases = predicted(one, key) - without
        row = [0.0] * (len(collectives) + 1)
        row[collectives.index(collective)] = 1 / us
        row[-1] = phases / us
        equations.append(row)
        values.append((us * 1000 - without) / us)
    solution, *_ = np.linalg.lstsq(np.array(equations), np.array(values), rcond=None)
    return here.parameters.changed(
        call={name: round(max(0.0, float(ns)), 1)
              for name, ns in zip(collectives, solution, strict=False)},
        step=round(max(0.0, float(solution[-1])), 1))


# ---------------------------------------------------------------------- times

VARIANT = ("collective", "bytes", "algorithm", "fan_in", "fan_out", "section_bytes")


def times_of(rows: Iterable[dict]) -> dict[tuple, float]:
    """(collective, bytes, algorithm, fan_in, fan_out, section_bytes) -> µs."""
    return by_round((row for row in rows if "us" in row), VARIANT, "us")


def plan_of(key: tuple) -> Plan:
    """The plan of a variant, as it was measured: with the default Config."""
    _, _, _, fan_in, fan_out, section = key
    return Plan(fan_in or 1, fan_out or 1, section or 64 << 10)


def predicted(here: machine.Machine, key: tuple) -> float:
    """ns of a variant."""
    return costs.predict(key[0], key[2], here, key[1], plan_of(key))


def compared(here: machine.Machine, times: dict[tuple, float]) -> list[dict]:
    """Predicted beside measured, with the error: one row for each variant."""
    rows = []
    for key, us in sorted(times.items(), key=in_order):
        expected = predicted(here, key) / 1000
        rows.append({name: value for name, value in zip(VARIANT, key, strict=True)
                     if value is not None} | {
            "ranks": here.ranks, "measured_us": us, "predicted_us": expected,
            "error": expected / us - 1})
    return rows


def in_order(item: tuple[tuple, float]) -> tuple:
    """Collectives and algorithms as ALGORITHMS has them, then sizes."""
    collective, nbytes, name, *rest = item[0]
    return (list(ALGORITHMS).index(collective), nbytes, ALGORITHMS[collective].index(name),
            [value or 0 for value in rest])


def errors(rows: Iterable[dict]) -> dict[str, float]:
    """Median of |error| for each collective."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["collective"], []).append(abs(row["error"]))
    return {name: round(median(values), 4) for name, values in found.items()}


# ---------------------------------------------------------------------- tables


def default_of(rows: list[dict], decisions: list, nbytes: int) -> dict | None:
    """Among the variants of a point the built-in default, or what is nearest to it."""
    usual = select.decision_for({"": decisions}, "", nbytes)
    candidates = [row for row in rows if row["algorithm"] == usual.algorithm]

    def distance(row: dict) -> tuple:
        radices = [abs(row.get(name, 0) - getattr(usual, name)) if name in row else 0
                   for name in ("fan_in", "fan_out")]
        return (*radices, abs(math.log(row.get("section_bytes", usual.section_bytes or 1)
                                       / (usual.section_bytes or 1))))

    return min(candidates, key=distance, default=None)


def mark(rows: list[dict], config, ranks: int, oversubscribed: bool, domains: int = 1,
         heap: bool = False) -> None:
    """Sets ``best``, ``default`` and ``chosen`` on the rows of one number of ranks.

    Chosen is the default where it is within 5 % of the best, else what the next smaller size has
    where that is, else the best.
    """
    decisions = select.decide(config, ranks, oversubscribed, domains, heaps=heap)
    points: dict[tuple, list[dict]] = {}
    for row in rows:
        row.update(best=False, default=False, chosen=False)
        if select.may_be_chosen(row["collective"], row["algorithm"], heap):
            points.setdefault((row["collective"], row["bytes"]), []).append(row)
    previous: dict[str, tuple] = {}
    for (collective, nbytes), group in sorted(points.items()):
        best = min(group, key=lambda row: row["measured_us"])
        usual = default_of(group, decisions[collective], nbytes)
        best["best"] = True
        limit = best["measured_us"] * WORTH_A_CHANGE
        same = next((row for row in group if how(row) == previous.get(collective)), None)
        chosen = next(row for row in (usual, same, best)
                      if row is not None and row["measured_us"] <= limit)
        if usual is not None:
            usual["default"] = True
        chosen["chosen"] = True
        previous[collective] = how(chosen)


def how(row: dict) -> tuple:
    """What a row of the table says of a variant, apart from sizes."""
    return tuple(row.get(name) for name in VARIANT[2:])


def table(rows: list[dict], ranks: int, oversubscribed: bool, heap: bool = False) -> dict:
    """The decision table of one number of ranks, of marked rows. See ``tables``."""
    radix = select.default_radix(ranks, oversubscribed)
    found: dict[str, list[dict]] = {}
    chosen = sorted((row for row in rows if row["chosen"] and row["collective"] in tuned(heap)),
                    key=lambda row: row["bytes"])
    for row in chosen:
        listed = found.setdefault(row["collective"], [])
        point = [row["bytes"], round(row["predicted_us"], 3), round(row["measured_us"], 3)]
        new = {"up_to": select.UNLIMITED, "algorithm": row["algorithm"],
               "fan_in": row.get("fan_in", radix), "fan_out": row.get("fan_out", radix),
               "section_bytes": row.get("section_bytes", 64 << 10), "points": [point]}
        if listed and all(listed[-1][key] == new[key] for key in new if key not in (
                "up_to", "points")):
            listed[-1]["points"].append(point)
            continue
        if listed:
            # Between two measured sizes: half way, as sizes are counted.
            limit = int(math.sqrt(listed[-1]["points"][-1][0] * row["bytes"]))
            listed[-1]["up_to"] = costs.vector_bytes(row["collective"], limit, ranks)
        listed.append(new)
    return {"ranks": ranks, "oversubscribed": oversubscribed, "heap": heap,
            "errors": errors(rows), "rows": found}


def crossings(rows: list[dict], value: str) -> list[dict]:
    """Where the fastest algorithm changes, by ``predicted_us`` or ``measured_us``.

    Each algorithm at its fastest variant; between two sizes where lines through the logarithms of
    the times meet.
    """
    best: dict[tuple, float] = {}
    for row in rows:
        key = row["collective"], row["bytes"], row["algorithm"]
        best[key] = min(row[value], best.get(key, math.inf))
    found = []
    for collective in dict.fromkeys(key[0] for key in best):
        sizes = sorted({key[1] for key in best if key[0] == collective})
        names = list(dict.fromkeys(key[2] for key in best if key[0] == collective))
        winners = [min((best.get((collective, nbytes, name), math.inf), name)
                       for name in names)[1] for nbytes in sizes]
        for i in range(len(sizes) - 1):
            old, new = winners[i], winners[i + 1]
            if old == new:
                continue
            gaps = [math.log(best[collective, nbytes, new] / best[collective, nbytes, old])
                    if (collective, nbytes, new) in best and (collective, nbytes, old) in best
                    else None for nbytes in sizes[i:i + 2]]
            at = None
            if None not in gaps:
                part = gaps[0] / (gaps[0] - gaps[1])
                at = round(sizes[i] * (sizes[i + 1] / sizes[i]) ** part)
            found.append({"collective": collective, "from": old, "to": new, "bytes": at,
                          "by": value.removesuffix("_us"), "ranks": rows[0]["ranks"]})
    return found


