"""smcoll's communicators: mpi4py's own, with collectives through shared memory.

A method parses its buffers, asks the engine for the plan of so many bytes, and calls it: no Python
frame lies between the caller and the compiled loops. What can't go that way goes to MPI, decided by
things that are equal on all ranks only (DESIGN rule 3): no segment, an operation or element type
without a kernel.
"""

from dataclasses import dataclass

from mpi4py import MPI

from smcoll.barrier cimport COLLECTIVE_BARRIER
from smcoll.engine cimport Engine
from smcoll.state cimport State, engine_of, keyvals, own_mpi, state_of

from smcoll.algos import ALGORITHMS, RADICES, STREAMED
from smcoll.config import Config
from smcoll.movement import Movement
from smcoll.objects import Objects
from smcoll.reductions import Reductions
from smcoll.select import decision_for


@dataclass(frozen=True)
class Explanation:
    """What a call would do and why. ``str()`` gives one line."""

    collective: str
    nbytes: int
    path: str
    algorithm: str
    parameters: dict
    reason: str

    def __str__(self):
        details = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return (f"{self.collective} of {self.nbytes} bytes: {self.algorithm}"
                f"{f' ({details})' if details else ''}, {self.path}: {self.reason}")


class Collectives(Reductions, Movement, Objects):
    """The accelerated methods; mixed into mpi4py's communicator classes."""

    __slots__ = ()

    # ------------------------------------------------------------------ collectives

    def Barrier(self):
        """Synchronise all ranks (all-read flags by default: every rank reads everybody's)."""
        cdef Engine engine = engine_of(self)
        if engine is None:
            own_mpi(self, "barrier")
            return MPI.Comm.Barrier(self)
        engine.barrier_(engine.choose(COLLECTIVE_BARRIER, 0))

    # ------------------------------------------------------------------ what it does and why

    @property
    def engine(self):
        """The compiled engine; None where all collectives are MPI's own. Collective at first."""
        return engine_of(self)

    def explain(self, collective, nbytes=0):
        """Which algorithm, parameters and path a call of ``nbytes`` bytes takes, and why.

        Collective if no collective was called yet (the segment is made then).
        """
        cdef Engine engine = engine_of(self)
        collective = collective.lower().removesuffix("_block")
        if collective not in ALGORITHMS and collective[:-1] in ALGORITHMS:
            collective = collective[:-1]                       # Gatherv, Alltoallw
        if collective not in ALGORITHMS:
            return Explanation(collective, nbytes, "MPI", "MPI's own", {},
                               "not among smcoll's collectives")
        if engine is None:
            return Explanation(collective, nbytes, "MPI", "MPI's own", {}, state_of(self).reason)
        row = decision_for(engine.decisions, collective, nbytes)
        inline = engine.is_inline(collective, row.number, nbytes)
        if collective in STREAMED:
            if engine.streams_refused:
                return Explanation(collective, nbytes, "MPI", "MPI's own", {},
                                   "the streams could not be reserved")
            return Explanation(collective, nbytes, "shared memory", row.algorithm,
                               {"chunk_bytes": engine.stream_chunk}, row.reason)
        if engine.data_refused and not inline and collective != "barrier" and nbytes > 0:
            return Explanation(collective, nbytes, "MPI", "MPI's own", {},
                               "the data regions could not be reserved")
        parameters = {name: getattr(row, name)
                      for name in RADICES.get((collective, row.algorithm), ())}
        if inline:
            parameters["inline"] = True
        elif collective != "barrier":
            parameters.update(section_bytes=row.section_bytes, pipelined=row.pipelined)
        return Explanation(collective, nbytes, "shared memory", row.algorithm, parameters,
                           row.reason)

    def stats(self):
        """Rows ``{collective, algorithm, path, calls, bytes, seconds}`` of this rank, so far."""
        return state_of(self).stats()

    # ------------------------------------------------------------------ life and death

    def __reduce__(self):
        # mpi4py pickles its predefined objects by name, and refuses all other communicators. The
        # name may stand for our object in the process that unpickles.
        _, (_, original) = MPI.Comm.__reduce__(self)
        return _predefined, (original.__reduce__(),)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        cdef State state = state_of(self)
        if kind is None:
            self.Free()
        elif state.engine is not None:
            # Others may be anywhere: don't synchronise, tell them that we are gone.
            state.engine.abandon()
            state.close()


def _predefined(name):
    """A predefined communicator, as ``mpi4py.MPI`` names it in this process."""
    return getattr(MPI, name)


class Comm(Collectives, MPI.Intracomm):
    """A communicator whose collectives go through one shared segment per node.

    ``Comm(parent, config=None)`` is collective over ``parent``, like ``parent.Dup()``: it has a
    context of its own. The segment is made at the first collective (``eager``: now), with rank 0's
    settings. ``Free()``, or the end of a ``with`` block, frees the segment too.
    """

    __slots__ = ("_state",)

    def __new__(cls, comm=None, config=None):
        if comm is None:
            return MPI.Intracomm.__new__(cls)
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"expected an MPI.Intracomm, not {type(comm).__name__}")
        check_config(config)
        duplicate = MPI.Intracomm.Dup(MPI.Intracomm(comm))
        self = MPI.Intracomm.__new__(cls, duplicate)
        adopt(self, config)
        state_of(self).owned = True
        return self

    def __init__(self, comm=None, config=None):
        pass


class Cartcomm(Collectives, MPI.Cartcomm):
    """A Cartesian communicator with smcoll's collectives (made by ``wrap``)."""

    __slots__ = ("_state",)


class Graphcomm(Collectives, MPI.Graphcomm):
    """A graph communicator with smcoll's collectives (made by ``wrap``)."""

    __slots__ = ("_state",)


class Distgraphcomm(Collectives, MPI.Distgraphcomm):
    """A distributed graph communicator with smcoll's collectives (made by ``wrap``)."""

    __slots__ = ("_state",)


def check_config(config):
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"expected a smcoll.Config, not {type(config).__name__}")


def adopt(comm, config):
    """Give a new handle its settings, and its segment at once if they say eager."""
    cdef State state
    MPI.Comm.Set_attr(comm, keyvals().config, config or Config())
    state = state_of(comm)
    if state.config.eager:
        state.make(comm)


def wrap(comm, config=None):
    """The same communicator (the same handle), accelerated, of its own kind.

    All objects with one handle share one engine; ``config`` counts when the handle is wrapped for
    the first time. Not collective, unless ``eager``.
    """
    check_config(config)
    if isinstance(comm, Collectives):
        return comm
    kinds = ((MPI.Cartcomm, Cartcomm), (MPI.Graphcomm, Graphcomm),
             (MPI.Distgraphcomm, Distgraphcomm), (MPI.Intracomm, Comm))
    plain, accelerated = next((kind for kind in kinds if isinstance(comm, kind[0])), (None, None))
    if plain is None:
        raise TypeError(f"expected an intracommunicator, not {type(comm).__name__}")
    wrapped = plain.__new__(accelerated, comm)
    if MPI.Comm.Get_attr(wrapped, keyvals().state) is None:
        adopt(wrapped, config)
    return wrapped
