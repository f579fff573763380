"""The points that a job measures: which collectives with how many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def points_of(collectives: Iterable[str], sizes: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Each (collective, bytes). A barrier has no bytes."""
    for collective in collectives:
        for nbytes in [0] if collective == "barrier" else sizes:
            yield collective, nbytes
