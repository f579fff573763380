"""The tables of ``smcoll compare``: one for each opponent, with smcoll's time of the same job."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.text import Text

from smcoll.cli.output import (
    FASTER,
    SLOWER,
    STANDING_STYLES,
    UNDECIDED,
    algorithm_cell,
    microseconds,
    standing,
)
from smcoll.cli.page import Column, prose, sectioned
from smcoll.tuning import distance

WIDTH = 70
# Of a second job, in which MPI is forced onto messages: its own figures of smcoll, too.
FORCED = "point_to_point"
OF_A_JOB = ("us", "us_min", "us_max")
RATIOS = ("ratio", "ratio_low", "ratio_high")


def add_forced(row: dict, other: dict) -> None:
    """Into a row what the second job measured: MPI forced onto messages, beside smcoll again."""
    for name in OF_A_JOB:
        row[f"{FORCED}_{name}"] = other[f"mpi_{name}"]
        row[f"{FORCED}_smcoll_{name}"] = other[f"smcoll_{name}"]
    for name in RATIOS:
        row[f"{FORCED}_{name}"] = other[name]
    row[f"{FORCED}_valid"] = other["mpi_valid"]
    row[f"{FORCED}_smcoll_valid"] = other["valid"]
    row[f"{FORCED}_distance"] = other["distance"]
    row["problems"] += [f"with point-to-point messages: {text}" for text in other["problems"]]
    if other["valid"] is False:
        row["valid"] = False


def against_forced(rows: Sequence[dict]) -> list[dict]:
    """The second job's rows, as the first one's are."""
    return [row | {
        **{f"mpi_{name}": row[f"{FORCED}_{name}"] for name in OF_A_JOB},
        **{f"smcoll_{name}": row[f"{FORCED}_smcoll_{name}"] for name in OF_A_JOB},
        **{name: row[f"{FORCED}_{name}"] for name in RATIOS},
        "mpi_valid": row[f"{FORCED}_valid"], "valid": row[f"{FORCED}_smcoll_valid"],
        "distance": row[f"{FORCED}_distance"]} for row in rows if f"{FORCED}_us" in row]


def against_peer(rows: Sequence[dict], peer: str) -> list[dict]:
    """The rows of one of several MPIs."""
    return [row | row["peers"][peer] for row in rows if peer in row["peers"]]


def table(rows: Sequence[dict], title: str, mpi: str, full: bool = False) -> Group:
    """smcoll beside one opponent. ``full``: with the fastest and the slowest block of each."""
    states = {row["distance"] for row in rows}
    limited = any("limit_us" in row for row in rows)
    columns = [Column("bytes"), *([Column("cores", left=True)] if len(states) > 1 else []),
               Column("smcoll us"), Column(f"{mpi} us"), Column("times faster"),
               Column("95 % bounds"), *([Column("limit us")] if limited else []),
               Column("algorithm", left=True, wraps=True)]
    sections = []
    for collective, group in by_collective(rows):
        lines = []
        for row in group:
            ratio, bounds = ratio_cells(row)
            lines.append([
                str(row["bytes"]) if collective != "barrier" else "-",
                *([row["distance"]] if len(states) > 1 else []),
                time_cell(row, "smcoll", full), time_cell(row, "mpi", full), ratio, bounds,
                *([microseconds(row.get("limit_us"))] if limited else []), algorithm_cell(row)])
        sections.append((collective, lines))
    where = f"; cores {states.pop()}" if len(states) == 1 else ""
    return Group(Text(), sectioned(columns, sections, f"{title}{where}", WIDTH),
                 Text(summary(rows)))


def by_collective(rows: Sequence[dict]) -> Iterator[tuple[str, list[dict]]]:
    """Rows that follow each other with the same collective."""
    for collective, group in itertools.groupby(rows, key=lambda row: row["collective"]):
        yield collective, list(group)


def time_cell(row: dict, key: str, full: bool) -> str:
    """A median; with its range below it."""
    text = microseconds(row[f"{key}_us"])
    if full and f"{key}_us_min" in row:
        text += f"\n{microseconds(row[f'{key}_us_min'])}-{microseconds(row[f'{key}_us_max'])}"
    return text


def ratio_cells(row: dict) -> tuple[Text, Text]:
    """How many times faster smcoll is, if that is decided; and the bounds that decide it."""
    if row["ratio"] is None:
        wrong = [name for key, name in (("valid", "smcoll"), ("mpi_valid", "MPI"))
                 if row[key] is False]
        return Text("WRONG:", style="bold red"), Text(", ".join(wrong), style="bold red")
    verdict = standing(row["ratio_low"], row["ratio_high"])
    style = STANDING_STYLES[verdict]
    return (Text(UNDECIDED if verdict == UNDECIDED else digits(row["ratio"]), style=style),
            Text(f"{digits(row['ratio_low'])}-{digits(row['ratio_high'])}", style=style))


def digits(ratio: float) -> str:
    """Three that mean something, and two places near 1."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def summary(rows: Sequence[dict]) -> str:
    """``faster in 31, undecided 3, slower 0``."""
    found = Counter("wrong" if row["ratio"] is None else standing(
        row["ratio_low"], row["ratio_high"]) for row in rows)
    text = f"faster in {found[FASTER]}, undecided {found[UNDECIDED]}, slower {found[SLOWER]}"
    return text + (f", wrong {found['wrong']}" if found["wrong"] else "")


def print_how(console: Console, rows: Sequence[dict], read: bool) -> None:
    """What the tables' words mean. ``read``: of results, while they were measured."""
    console.print()
    prose(console, "us: median over blocks of the slowest rank's mean time of a call. times "
          "faster: the MPI's time / smcoll's, block by block in the same job; undecided where the "
          "95 % bounds contain 1. cores: near where a cache line takes less than "
          f"{distance.NEAR_BELOW:.0f} ns there and back between the ranks' cores, far from "
          f"{distance.FAR_FROM:.0f} on; ratios are of the blocks in that state.")
    paths = Counter(row["path"] for row in rows)
    checked = Counter(row["valid"] is not None for row in rows)
    prose(console, "smcoll's path: " + ", ".join(
        path if len(paths) == 1 else f"{path} in {count} rows" for path, count in paths.items())
        + "; results were " + ("checked" if checked[True] else "not checked")
        + (", and read behind each call." if read else "."))


def print_problems(console: Console, rows: Sequence[dict]) -> None:
    """What validation found."""
    for row in rows:
        for problem in row["problems"]:
            console.print(Text.assemble(("wrong:", "bold red"),
                                        f" {row['ranks']} ranks: {problem}"), soft_wrap=True)
