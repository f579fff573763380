"""smcoll: shared-memory collectives for mpi4py communicators.

>>> from mpi4py import MPI
>>> import smcoll
>>> comm = smcoll.Comm(MPI.COMM_WORLD)
>>> comm.Allreduce(x, y, op=MPI.SUM)      # doctest: +SKIP
"""

from .comm import Cartcomm, Comm, Distgraphcomm, Graphcomm, wrap
from .config import Config
from .errors import Error, MismatchError, PeerError, SegmentError, WaitTimeout
from .install import install, uninstall

__version__ = "0.1.0"

__all__ = [
    "Cartcomm", "Comm", "Config", "Distgraphcomm", "Error", "Graphcomm", "MismatchError",
    "PeerError", "SegmentError", "WaitTimeout", "install", "uninstall", "wrap",
]
