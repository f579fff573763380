"""Synthetic topologies: hwloc's descriptions of regular machines, such as "package:2 core:4 pu:1".

A small reader of our own, so that such a description means the same everywhere, with any version of
hwloc and with none. It knows what ``lstopo --of synthetic`` prints; attributes in parentheses
(memory and cache sizes) are ignored, except ``indexes``, which is refused.
"""

from __future__ import annotations

import math
import re

# What a type may be called: hwloc takes shortened names, too.
ALIASES = {
    "numanode": "NUMANode", "numa": "NUMANode", "node": "NUMANode", "package": "Package",
    "pack": "Package", "socket": "Package", "die": "Die", "group": "Group", "core": "Core",
    "pu": "PU",
    **{f"l{depth}{kind}{tail}": f"L{depth}Cache"
       for depth in range(1, 6) for kind in ("", "d") for tail in ("", "cache")},
}
_INSTRUCTION_CACHE = re.compile(r"l[1-5]i(cache)?")
_WORD = re.compile(r"(\[?)([A-Za-z][A-Za-z0-9]*)(?::(\d+))?(\([^()]*\))?(\]?)")
MOST_CPUS = 1 << 16


def parse(description: str) -> list[tuple[str, frozenset[int]]]:
    """A description -> objects for ``build_tree``. ValueError when it is malformed.

    Words ``type:count`` go from the machine downwards, each count per parent. ``[numa]`` behind a
    word gives each object of that level a NUMA node, at the beginning the machine. Without any
    ``numa`` there is one; without ``pu`` at the end each lowest object is one PU's.
    """
    levels = _words(description)
    if not any(kind == "NUMANode" for kind, _ in levels):
        levels.insert(0, ("NUMANode", 1))
    if levels[-1][0] != "PU":
        levels.append(("PU", 1))
    if [kind for kind, _ in levels].count("PU") != 1:
        raise ValueError(f"{description!r}: PUs can only be the last level")
    total = math.prod(count for _, count in levels)
    if total > MOST_CPUS:
        raise ValueError(f"{description!r}: {total} CPUs, at most {MOST_CPUS} are possible")
    objects, number = [], 1
    for kind, count in levels:
        number *= count
        width = total // number
        objects += [(kind, frozenset(range(first, first + width)))
                    for first in range(0, total, width)]
    return objects


def _words(description: str) -> list[tuple[str, int]]:
    levels: list[tuple[str, int]] = []
    for word in re.sub(r"\(([^()]*)\)", lambda m: m.group().replace(" ", ","), description).split():
        match = _WORD.fullmatch(word)
        if match is None or bool(match[1]) != bool(match[5]):
            raise ValueError(f"{description!r}: {word!r} is not type:count")
        name, count, attributes = match[2].lower(), match[3], match[4] or ""
        if "indexes" in attributes:
            raise ValueError(f"{description!r}: {word!r}: attribute indexes is not supported")
        if name == "machine" and count in (None, "1") and not levels:
            continue
        if _INSTRUCTION_CACHE.fullmatch(name):
            if count == "1":
                continue     # no level of ours, and here it makes none
            raise ValueError(f"{description!r}: {word!r}: only one instruction cache per parent")
        if name not in ALIASES:
            raise ValueError(f"{description!r}: unknown type {match[2]!r} (there are "
                             f"{', '.join(sorted(set(ALIASES.values())))})")
        if match[1]:
            _attach(levels, ALIASES[name], word, description)
        elif count is None or int(count) == 0:
            raise ValueError(f"{description!r}: {word!r} is not type:count with a count from 1")
        else:
            levels.append((ALIASES[name], int(count)))
    if not levels:
        raise ValueError("the description of the machine is empty")
    return levels


def _attach(levels: list[tuple[str, int]], kind: str, word: str, description: str) -> None:
    """A memory child: a level of its own, with the same CPUs as the one that it belongs to."""
    if kind != "NUMANode":
        raise ValueError(f"{description!r}: {word!r}: only NUMA nodes can be attached")
    levels.append((kind, 1))
