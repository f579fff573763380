"""Calls from C that take a smcoll communicator's method: any datatype, any operation.

What C gave, as buffer arguments of mpi4py: an address has no end, so a buffer of one byte stands
for it, with count and datatype beside it.
"""

from __future__ import annotations

import _thread
import sys
import threading
from dataclasses import dataclass

from mpi4py import MPI

from smcoll.comm.comm import wrap
from smcoll.engine.engine import LeftToMPI
from smcoll.errors import Error

Numbers = int | list[int]

# Held while MPI's handles are learned.
first = threading.Lock()


@dataclass(slots=True)
class Given:
    """The arguments of one call. What a rank's role leaves out (a Gather's receive side, say) is
    not looked at."""

    root: int
    at_root: bool              # True where there is no root
    in_place: int              # MPI_IN_PLACE, an address
    send: int
    recv: int
    op: int                    # handles
    send_types: Numbers | None
    recv_types: Numbers | None
    send_counts: Numbers
    recv_counts: Numbers
    send_starts: Numbers
    recv_starts: Numbers

    def sent(self, counts: Numbers | None = None):
        """The send side as a buffer argument."""
        return self._side(self.send, self.send_counts if counts is None else counts,
                          self.send_starts, self.send_types)

    def received(self, counts: Numbers | None = None):
        """The receive side."""
        return self._side(self.recv, self.recv_counts if counts is None else counts,
                          self.recv_starts, self.recv_types)

    def operands(self, counts: Numbers):
        """The send side of a reduction, whose type and count C gives once."""
        return self._side(self.send, counts, 0, self.recv_types)

    def operation(self) -> MPI.Op:
        return MPI.Op.fromhandle(self.op)

    def _side(self, address: int, counts, starts, types):
        if address == self.in_place:
            return MPI.IN_PLACE
        buffer = MPI.memory.fromaddress(address, 1) if address else MPI.BOTTOM
        kind = ([MPI.Datatype.fromhandle(one) for one in types] if isinstance(types, list)
                else MPI.Datatype.fromhandle(types))
        return [buffer, (counts, starts) if isinstance(starts, list) else counts, kind]


def Barrier(comm, given: Given) -> None:
    comm.Barrier()


def Bcast(comm, given: Given) -> None:
    comm.Bcast(given.received(), given.root)


def Gather(comm, given: Given) -> None:
    comm.Gather(given.sent(), given.received() if given.at_root else None, given.root)


def Gatherv(comm, given: Given) -> None:
    comm.Gatherv(given.sent(), given.received() if given.at_root else None, given.root)


def Scatter(comm, given: Given) -> None:
    comm.Scatter(given.sent() if given.at_root else None, given.received(), given.root)


def Scatterv(comm, given: Given) -> None:
    comm.Scatterv(given.sent() if given.at_root else None, given.received(), given.root)


def Allgather(comm, given: Given) -> None:
    comm.Allgather(given.sent(), given.received())


def Allgatherv(comm, given: Given) -> None:
    comm.Allgatherv(given.sent(), given.received())


def Alltoall(comm, given: Given) -> None:
    comm.Alltoall(given.sent(), given.received())


def Alltoallv(comm, given: Given) -> None:
    comm.Alltoallv(given.sent(), given.received())


def Alltoallw(comm, given: Given) -> None:
    comm.Alltoallw(given.sent(), given.received())


def Reduce(comm, given: Given) -> None:
    comm.Reduce(given.operands(given.recv_counts), given.received() if given.at_root else None,
                given.operation(), given.root)


def Allreduce(comm, given: Given) -> None:
    comm.Allreduce(given.operands(given.recv_counts), given.received(), given.operation())


def Reduce_scatter(comm, given: Given) -> None:
    counts = given.recv_counts
    in_place = given.send == given.in_place
    comm.Reduce_scatter(given.operands(sum(counts)),
                        given.received(sum(counts) if in_place else counts[comm.Get_rank()]),
                        counts, given.operation())


def Reduce_scatter_block(comm, given: Given) -> None:
    comm.Reduce_scatter_block(given.operands(given.recv_counts), given.received(),
                              given.operation())


def Scan(comm, given: Given) -> None:
    comm.Scan(given.operands(given.recv_counts), given.received(), given.operation())


def Exscan(comm, given: Given) -> None:
    comm.Exscan(given.operands(given.recv_counts), given.received(), given.operation())


def carry_out(name: str, comm, given: Given) -> bool:
    """Call the method of this name; False where all ranks agree that the call is MPI's."""
    engine = comm.engine
    engine.from_c = True
    try:
        _METHODS[name](comm, given)
    except LeftToMPI:
        return False
    finally:
        engine.from_c = False
    return True


_METHODS = {method.__name__: method for method in (
    Barrier, Bcast, Gather, Gatherv, Scatter, Scatterv, Allgather, Allgatherv, Alltoall, Alltoallv,
    Alltoallw, Reduce, Allreduce, Reduce_scatter, Reduce_scatter_block, Scan, Exscan)}


def accelerated(handle: int):
    """A smcoll communicator with this handle, and its engine, which is made now; collective."""
    comm = wrap(MPI.Comm.fromhandle(handle))
    return comm, comm.engine


def code_of(error: BaseException) -> int:
    """MPI's code for it. What MPI would not say is said on stderr."""
    if isinstance(error, Error) or not isinstance(error, MPI.Exception):
        tell(str(error) or type(error).__name__)
    if isinstance(error, KeyboardInterrupt):
        _thread.interrupt_main()       # Python raises it when the library has returned
    return error.Get_error_code() if isinstance(error, MPI.Exception) else MPI.ERR_OTHER


def tell(text: str) -> None:
    """A sentence on stderr, in one piece."""
    sys.stderr.write(f"smcoll: in a C library's call: {text}\n")
    sys.stderr.flush()
