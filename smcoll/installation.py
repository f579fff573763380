"""Replacing MPI.COMM_WORLD, so that programs run on smcoll unchanged."""

from __future__ import annotations

from mpi4py import MPI

from .comm import wrap
from .config import Config

_replaced: dict[str, MPI.Intracomm] = {}


def install(config: Config | None = None) -> None:
    """``MPI.COMM_WORLD``, and what is duplicated from it, become smcoll communicators.

    Before the program copies the name (``from mpi4py.MPI import COMM_WORLD``). Calling it again
    changes nothing. With ``SMCOLL_DISABLE=1`` nothing is replaced.
    """
    settings = config or Config()
    if settings.disable or "COMM_WORLD" in _replaced:
        return
    _replaced["COMM_WORLD"] = MPI.COMM_WORLD
    MPI.COMM_WORLD = wrap(MPI.COMM_WORLD, settings)


def uninstall() -> None:
    """Give ``mpi4py.MPI`` its own COMM_WORLD back. Existing smcoll communicators stay valid."""
    for name, original in _replaced.items():
        setattr(MPI, name, original)
    _replaced.clear()
