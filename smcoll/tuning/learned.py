"""What communicators have found on this machine: kept from job to job, by each node's first rank.

A JSON file beside the decision table of ``smcoll tune``, for each kind of communicator the variants
of the classes that were explored. It is replaced as a whole: of two jobs, or two nodes that share
the folder, that end at the same moment what one of them found is lost, and nothing else. Where no
file can be had, nothing is kept.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smcoll.tuning import tables
from smcoll.tuning.select import Decision
from smcoll.tuning.variants import LAST_CLASS

FORMAT = 1
FIELDS = ("algorithm", "fan_in", "fan_out", "section_bytes", "segments")
IN_TABLE = None          # stands for the row of the decision table


@dataclass(frozen=True)
class Kind:
    """Communicators that are alike: what one has found holds for the others.

    ``domains``: parts of the hardware that the ranks lie in; ``spans``: they are a node's part of
    a communicator over several, whose stages take turns with the network.
    """

    ranks: int
    oversubscribed: bool
    domains: int
    heap: bool
    spans: bool = False

    def __str__(self) -> str:
        words = [f"{self.ranks} ranks"]
        if self.domains > 1:
            words.append(f"in {self.domains} domains")
        if self.oversubscribed:
            words.append("more than cores")
        if self.heap:
            words.append("with shared heaps")
        if self.spans:
            words.append("of a communicator over several nodes")
        return ", ".join(words)


def file() -> Path | None:
    """Where it lies; None for a user without a home folder."""
    try:
        table = tables.default_file()
    except RuntimeError:
        return None
    return table.with_name(table.name.replace("tune-", "learned-"))


def read() -> dict[str, dict]:
    """``{kind: {collective: {class: entry}}}``; empty where there is nothing of this machine."""
    place = file()
    try:
        content = json.loads(place.read_text()) if place is not None else {}
        if (content["format"], content["version"], content["machine"]) != (
                FORMAT, tables.version(), tables.machine()):
            return {}
        return {kind: {collective: {in_class: entry for in_class, entry in classes.items()
                                    if _is_entry(in_class, entry)}
                       for collective, classes in collectives.items()}
                for kind, collectives in content["kinds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_entry(in_class: str, entry: Any) -> bool:
    """Whether it is as ``remember`` writes them: somebody else may have written there."""
    def is_row(row: Any) -> bool:
        return row is IN_TABLE or (isinstance(row, dict) and all(
            isinstance(row.get(name), (int, str)) for name in FIELDS))

    return (in_class.isdigit() and int(in_class) <= LAST_CLASS and isinstance(entry, dict)
            and all(name in entry and is_row(entry[name]) for name in ("best", "second")))


def recall(kind: Kind, variants: Mapping[str, Sequence[Decision]],
           may_try: Callable[[str, int], Container[int]]) -> list[list]:
    """``[collective, class, variant, runner-up]`` for each class that was explored; numbers of
    ``variants`` from 1 on, 0: the row of the table. ``may_try(collective, class)``: which of them
    are possible with today's table and settings; others are left out."""
    found: list[list] = []
    for collective, classes in read().get(str(kind), {}).items():
        if collective not in variants:
            continue
        numbers: dict[Any, int] = {_key(row): number for number, row in enumerate(
            variants[collective], 1)}
        numbers[IN_TABLE] = 0
        for in_class, entry in classes.items():
            pair = [numbers.get(_given(entry[name])) for name in ("best", "second")]
            possible = may_try(collective, int(in_class))
            if all(number == 0 or number in possible for number in pair):
                found.append([collective, int(in_class), *pair])
    return found


def remember(kind: Kind, variants: Mapping[str, Sequence[Decision]], lessons: Mapping) -> None:
    """Add what was found to the file, if there can be one."""
    place = file()
    if place is None or not lessons:
        return
    kinds = read()
    known = kinds.setdefault(str(kind), {})
    for (collective, in_class), lesson in lessons.items():
        ranking = sorted(lesson.times, key=lesson.times.__getitem__)
        second = next((number for number in ranking if number != lesson.variant), lesson.variant)
        row = [IN_TABLE, *(_spec(one) for one in variants[collective])]
        known.setdefault(collective, {})[str(in_class)] = {
            "best": row[lesson.variant], "second": row[second],
            "best_ns": lesson.times.get(lesson.variant), "second_ns": lesson.times.get(second),
            "calls": lesson.calls}
    with contextlib.suppress(OSError):
        tables.write(place, {"format": FORMAT, "version": tables.version(),
                             "machine": tables.machine(), "kinds": kinds})


def _spec(row: Decision) -> dict:
    return {name: getattr(row, name) for name in FIELDS}


def _key(row: Decision) -> tuple:
    return tuple(getattr(row, name) for name in FIELDS)


def _given(spec: dict | None) -> tuple | None:
    return IN_TABLE if spec is None else tuple(spec[name] for name in FIELDS)
