"""What belongs to a communicator's handle, and the way from a Python object to it.

All Python objects with one handle share one engine (protocol rule 15).
"""

import os
import weakref

from mpi4py import MPI

from smcoll.engine.engine cimport Engine

from smcoll.comm.report import Report
from smcoll.comm.setup import set_up
from smcoll.config import Config
from smcoll.errors import FORKED, Error, SegmentError, TopologyError
from smcoll.mpi import uncaught
from smcoll.mpi.finalize import LEAVE, before_the_end, call_each
from smcoll.mpi.names import name_of
from smcoll.sync import waiting_report

# The objects themselves: install() rebinds the names.
cdef object _world = MPI.COMM_WORLD
cdef object _one_rank = MPI.COMM_SELF
cdef object _installed_config = None
cdef bint _is_forked = False
# Called, on all ranks alike, with each communicator whose engine was made or refused.
when_made = []


cdef class State:
    """What belongs to a communicator's handle: its settings, and its engine once it is made.

    Kept as an MPI attribute, so that all Python objects with that handle share one sequence of
    calls, and freeing the handle ends it (protocol rule 15).
    """

    def __cinit__(self, config):
        self.config = config
        self.mpi_calls = {}

    cdef make(self, comm):
        if self.closed:
            raise MPI.Exception(MPI.ERR_COMM)
        if self.failure is not None:
            raise Error(self.failure)
        if _is_forked:
            raise Error(FORKED)
        if self.in_set_up:
            raise Error("this communicator is being set up (by a second thread, or by the code "
                        "that a signal handler interrupted): one call at a time")
        self.in_set_up = True
        try:
            self.engine, self.config, self.reason = set_up(comm, self.config)
        except (SegmentError, TopologyError):
            raise                  # all ranks alike: the next call tries again
        except BaseException as error:
            self.failure = ("this communicator can't be used: its set-up ended on this rank with "
                            f"{type(error).__name__}")
            raise
        finally:
            self.in_set_up = False
        self.established = True
        for tell in when_made:
            tell(comm)
        _live_states.add(self)
        self.name = name_of(comm)
        if self.config.verbose:
            _report.announce(comm, self.reason)
        uncaught.arrange()
        if self.config.report_signal:
            waiting_report.arrange(self.config.report_signal, _who_waits)

    cdef attach_to(self, comm):
        self.users += 1
        comm._state = self
        weakref.finalize(comm, self.lose_user).atexit = False

    def lose_user(self):
        """An object with this handle was collected: without any, nobody can use the segment."""
        self.users -= 1
        if self.users == 0 and self.owned and self.engine is not None:
            self.collected = True
            self.close()

    def close(self):
        """End the engine, locally; the communicator can't be used through it any more."""
        if not self.closed and self.established and self.config.verbose:
            _report.add(self.stats(), [] if self.engine is None else self.engine.lines_of_lessons())
        was_open, self.closed = not self.closed, True
        if self.engine is not None:
            self.engine.close()
            if was_open:
                # Last: it may write a file, and others must know before that this rank has left.
                self.engine.keep_lessons()

    def abandon(self):
        """Give the communicator up, locally: others that wait for this rank fail, too."""
        if self.engine is not None:
            self.engine.abandon()

    def stats(self):
        rows = []
        if self.engine is not None:
            rows = self.engine.stats()
            if self.engine.calls_from_c is not None:
                rows += self.engine.calls_from_c.stats()
        for row in rows:
            if row["path"] == "MPI" and "reason" not in row:
                row["reason"] = (
                    "shared memory could not be reserved"
                    if self.engine.data_refused or self.engine.streams_refused else
                    "its elements overlap, or do not fit a data region")
        rows += [{"collective": name, "algorithm": "MPI's own", "path": "MPI", "calls": calls,
                  "from_c": 0, "bytes": 0, "seconds": 0.0, "direct_bytes": 0, "reason": self.reason}
                 for name, calls in self.mpi_calls.items()]
        return rows


_live_states = weakref.WeakSet()
_report = report = Report()


def _disown_all():
    # Parent and child would be one rank.
    global _is_forked
    cdef State state
    _is_forked = MPI.Is_initialized()
    for state in list(_live_states):
        if state.engine is not None:
            state.engine.disown()
    _live_states.clear()
    _report.sums.clear()
    _report.learned.clear()


os.register_at_fork(after_in_child=_disown_all)


def _leave_all():
    # So that a peer which still waits learns how this rank ended.
    if uncaught.ends_by() is not None:
        call_each([state.abandon for state in list(_live_states)])
    call_each([state.close for state in list(_live_states)])


before_the_end(LEAVE, _leave_all)
before_the_end(LEAVE, _report.print_table)


def _who_waits():
    """For each communicator in use: its name and its ranks as ``Engine.observe`` sees them."""
    cdef State state
    observed = []
    for state in list(_live_states):
        if state.engine is not None and not state.engine.closed:
            observed.append((state.name, state.engine.rank, state.engine.observe()))
    return observed


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
    if state is None or state.collected:
        state = new_state(comm, settings_for(comm))
    state.attach_to(comm)
    return state


cdef settings_for(comm):
    """The settings of a handle that has no state yet: its parent's, install()'s, or the default."""
    config = MPI.Comm.Get_attr(comm, keyvals().config)
    if config is None and is_predefined(comm):
        config = _installed_config
    return config or Config()


cdef bint is_predefined(comm) except -1:
    return comm == _world or comm == _one_rank


cdef installed_config():
    return _installed_config


cdef set_installed_config(config):
    """install()'s settings: those of the predefined communicators."""
    global _installed_config
    _installed_config = config


cdef State new_state(comm, config):
    cdef State state = State(config)
    MPI.Comm.Set_attr(comm, keyvals().config, config)
    MPI.Comm.Set_attr(comm, keyvals().state, state)
    return state


cdef count_fallback(comm, collective):
    # No engine: MPI's own blocking collective, counted for stats().
    cdef State state = state_of(comm)
    state.mpi_calls[collective] = state.mpi_calls.get(collective, 0) + 1


cdef check_root(Engine engine, int root):
    if not 0 <= root < engine.size:
        raise MPI.Exception(MPI.ERR_ROOT)
