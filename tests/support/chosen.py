"""A test's choices: settings by short names, and an algorithm for a few calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import smcoll
from smcoll.algorithms import ALGORITHMS
from smcoll.base.internals import Internals
from smcoll.tuning import select

INTERNALS = {entry.name for entry in fields(Internals)}


def config(**chosen) -> smcoll.Config:
    """Settings; beside them internals, and algorithms by their collectives' names."""
    inner = {name: chosen.pop(name) for name in INTERNALS & set(chosen)}
    names = {name: chosen.pop(name) for name in set(ALGORITHMS) & set(chosen)}
    if names:
        chosen["algorithms"] = names
    return smcoll.Config(**chosen, internals=inner)


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
