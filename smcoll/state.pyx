"""What belongs to a communicator's handle, and the way from a Python object to it.

All Python objects with one handle share one engine (DESIGN rule 15).
"""

import atexit
import sys
import weakref

from mpi4py import MPI

from smcoll.engine cimport Engine

from smcoll.config import Config
from smcoll.establish import establish


cdef class State:
    """What belongs to a communicator's handle: its settings, and its engine once it is made.

    Kept as an MPI attribute, so that all Python objects with that handle share one sequence of
    calls, and freeing the handle ends it (DESIGN rule 15).
    """

    def __cinit__(self, config):
        self.config = config
        self.mpi_calls = {}

    cdef make(self, comm):
        self.engine, self.config, self.reason = establish(comm, self.config)
        self.established = True
        if self.config.verbose and comm.Get_rank() == 0:
            print(f"smcoll: communicator of {comm.Get_size()} ranks: {self.reason}",
                  file=sys.stderr, flush=True)
        _live_states.add(self)

    cdef attach_to(self, comm):
        self.users += 1
        comm._state = self
        weakref.finalize(comm, self.lose_user).atexit = False

    def lose_user(self):
        """An object with this handle was collected: without any, nobody can use the segment."""
        self.users -= 1
        if self.users == 0 and self.owned:
            self.close()

    def close(self):
        """End the engine, locally; the communicator can't be used through it any more."""
        if self.engine is not None:
            if self.config.verbose and not self.engine.closed:
                _print_stats(self.engine.rank, self.stats())
            self.engine.close()

    def stats(self):
        rows = [] if self.engine is None else self.engine.stats()
        rows += [{"collective": name, "algorithm": "MPI's own", "path": "MPI", "calls": calls,
                  "bytes": 0, "seconds": 0.0} for name, calls in self.mpi_calls.items()]
        return rows


_live_states = weakref.WeakSet()


@atexit.register
def _leave_all():
    # So that a peer which still waits learns that this rank ended in good order.
    for state in list(_live_states):
        state.close()


def _print_stats(rank, rows):
    for row in rows:
        print(f"smcoll: rank {rank}: {row['collective']} {row['algorithm']} ({row['path']}): "
              f"{row['calls']} calls, {row['bytes']} bytes, {row['seconds']:.6f} s",
              file=sys.stderr, flush=True)


def _forget(comm, keyval, state):
    state.close()


cdef class Keyvals:
    """The two attributes on a communicator's handle."""

    def __cinit__(self):
        self.state = MPI.Comm.Create_keyval(delete_fn=_forget)
        self.config = MPI.Comm.Create_keyval(copy_fn=True)


cdef Keyvals _made_keyvals = None


cdef Keyvals keyvals():
    global _made_keyvals
    if _made_keyvals is None:
        _made_keyvals = Keyvals()
    return _made_keyvals


cdef State state_of(comm):
    """The state of a communicator's handle, made lazily and found again by every object with it."""
    cdef State state = getattr(comm, "_state", None)
    if state is not None:
        return state
    state = MPI.Comm.Get_attr(comm, keyvals().state)
    if state is None:
        state = State(MPI.Comm.Get_attr(comm, keyvals().config) or Config())
        MPI.Comm.Set_attr(comm, keyvals().state, state)
    state.attach_to(comm)
    return state


cdef own_mpi(comm, collective):
    # No engine: MPI's own blocking collective, counted for stats().
    cdef State state = state_of(comm)
    state.mpi_calls[collective] = state.mpi_calls.get(collective, 0) + 1


cdef check_root(Engine engine, int root):
    if not 0 <= root < engine.team.size:
        raise MPI.Exception(MPI.ERR_ROOT)
