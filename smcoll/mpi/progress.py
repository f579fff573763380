"""Driving MPI's own progress while a rank waits in shared memory.

The awaited rank may be blocked in something that needs this rank's MPI (protocol rule 8). Testing
a receive that nothing ever matches, on a private duplicate of COMM_SELF, progresses everything on
Open MPI, MPICH and Intel MPI; Iprobe does not (it returns early when a message is pending).
"""

from __future__ import annotations

import os
import threading

from mpi4py import MPI

from smcoll.mpi import finalize

_world_of_one = MPI.COMM_SELF    # kept: install() may rebind MPI.COMM_SELF
# Taken anew by a signal handler that interrupts a step and ends MPI.
_lock = threading.RLock()
_poking = False
_communicator = None
_request = None
_buffer = bytearray(1)
_finalize_keyval = None
_owner_process = None


def start() -> None:
    """Post the receive, once per process, after MPI was initialised."""
    global _communicator, _request, _finalize_keyval, _owner_process
    if _request is not None or MPI.Is_finalized():
        return
    _owner_process = os.getpid()
    _communicator = MPI.Intracomm(MPI.Intracomm.Dup(MPI.Intracomm(_world_of_one)))
    _request = _communicator.Irecv(_buffer, source=0, tag=0)
    # MPI_Finalize deletes COMM_SELF's attributes before anything else, so this also runs when the
    # program calls MPI.Finalize() itself; atexit comes before mpi4py's own finalisation.
    if _finalize_keyval is None:
        _finalize_keyval = MPI.Comm.Create_keyval(delete_fn=_at_finalize)
        _world_of_one.Set_attr(_finalize_keyval, True)
        finalize.before_the_end(finalize.STOP, stop)


def stop() -> None:
    """Cancel the receive and free its communicator; pokes do nothing from here on."""
    global _communicator, _request
    with _lock:
        request, _request = _request, None
        communicator, _communicator = _communicator, None
    # A forked child that exits must leave its parent's MPI alone.
    if request is not None and os.getpid() == _owner_process and not MPI.Is_finalized():
        request.Cancel()
        request.Wait()
        communicator.Free()


def _at_finalize(comm, keyval, value) -> None:
    finalize.end()


def poke() -> None:
    """One step of MPI's progress. A second thread that comes meanwhile leaves it to the first."""
    global _poking
    # `with`, not acquire() and try: a signal handler's exception may come between those two, and
    # who ends waits for the lock. A thread that comes between these two lines waits for one test.
    if _poking:
        return
    with _lock:
        try:
            _poking = True
            if _request is not None:
                _request.Test()
        finally:
            _poking = False
