"""Uncaught exceptions: one traceback a job, a line for the ranks that failed because of it.

A rank that ends by an exception of its own says so to the others, whose calls then fail. Their
tracebacks would hide the one that matters.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from mpi4py import MPI

_world = MPI.COMM_WORLD            # kept: install() rebinds the name
_ends_by: BaseException | None = None


def arrange() -> None:
    """From now on, unless the program prints uncaught exceptions in its own way."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _tell


def ends_by() -> BaseException | None:
    """The exception by which this process is about to end."""
    return _ends_by


def _tell(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    global _ends_by
    _ends_by = error
    if getattr(error, "passed_on", False):
        text = f"rank {MPI.Comm.Get_rank(_world)}: {kind.__name__}: {error}\n"
    else:
        text = "".join(traceback.format_exception(kind, error, frames))
    # In one write: what several ranks write piece by piece, mpiexec mixes.
    sys.stderr.write(text)
    sys.stderr.flush()
