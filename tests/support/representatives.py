"""Few tests that stand for all: of each test function, parameters in which every value occurs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def representatives(cells: Sequence[frozenset[Hashable]]) -> list[int]:
    """Numbers of sets that together have all elements; greedy, the first of the best each time.

    >>> representatives([frozenset("ax"), frozenset("ay"), frozenset("by")])
    [0, 2]
    """
    missing = set().union(*cells)
    chosen = []
    while missing:
        best = max(range(len(cells)), key=lambda number: (len(cells[number] & missing), -number))
        chosen.append(best)
        missing -= cells[best]
    return sorted(chosen) or [0]
