"""A collective by an algorithm of the test's choice, for a few calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smcoll.tuning import select


@contextmanager
def algorithm(comm, collective: str, name: str, **radices: int) -> Iterator[None]:
    """Inside, ``comm`` carries ``collective`` out so, at every size. The same on all ranks."""
    rows = comm.engine.decisions[collective]
    row = select.override(rows[-1], collective, algorithm=name, **radices)
    comm.engine.use({collective: [row]})
    try:
        yield
    finally:
        comm.engine.use({collective: rows})
