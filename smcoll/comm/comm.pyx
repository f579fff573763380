"""smcoll's communicators: mpi4py's own, with collectives through shared memory.

A method parses its buffers, asks the engine for the plan of so many bytes, and calls it: no Python
frame lies between the caller and the compiled loops. What can't go that way goes to MPI, decided by
things that are equal on all ranks only (protocol rule 3): no segment, an operation or element type
without a kernel.
"""

import os
from dataclasses import dataclass, replace
from difflib import get_close_matches

from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from mpi4py import MPI

from smcoll.base.signature cimport COLLECTIVE_BARRIER
from smcoll.comm.state cimport (
    State, count_fallback, engine_of, installed_config, is_predefined, keyvals, new_state,
    set_installed_config, settings_for, state_of,
)
from smcoll.engine.engine cimport Engine

from smcoll.algorithms import ALGORITHMS, RADICES
from smcoll.algos import COLLECTIVE_NUMBERS
from smcoll.comm.constructors import CartcommCreation, IntercommCreation, IntracommCreation
from smcoll.comm.movement import Movement
from smcoll.comm.objects import Objects
from smcoll.comm.reductions import Reductions
from smcoll.config import Config
from smcoll.internode.spanning import SpanningEngine
from smcoll.memory import heap_arrays
from smcoll.tuning.select import SHARED_HEAP, decision_for


if "SMCOLL_HEAP" in os.environ and Config().heap:
    heap_arrays.use()


@dataclass(frozen=True)
class Explanation:
    """What a call would do and why. ``str()`` gives one line."""

    collective: str
    nbytes: int
    path: str
    algorithm: str
    parameters: dict
    reason: str
    predicted_us: float | None = None      # by the model, and measured by smcoll tune, of the
    measured_us: float | None = None       # nearest size in the table that decided

    @property
    def error(self):
        """Predicted over measured, less 1; None where one of them is not known."""
        if self.predicted_us is None or self.measured_us is None:
            return None
        return self.predicted_us / self.measured_us - 1

    def __str__(self):
        details = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        known = [f"{word} {value:.3g} us" for word, value in (
            ("predicted", self.predicted_us), ("measured", self.measured_us)) if value is not None]
        if self.error is not None:
            known.append(f"error {100 * self.error:+.0f} %")
        evidence = f" ({', '.join(known)})" if known else ""
        return (f"{self.collective} of {self.nbytes} bytes: {self.algorithm}"
                f"{f' ({details})' if details else ''}, {self.path}: {self.reason}"
                f"{evidence}")


def check_is_of_mpi(collective):
    """ValueError, with the nearest name, where mpi4py has no such method."""
    if not any(hasattr(kind, name) for kind in (MPI.Intracomm, MPI.Topocomm)
               for name in (collective, collective.capitalize())):
        near = get_close_matches(collective, ALGORITHMS, n=1)
        raise ValueError(f"{collective!r} is no collective"
                         + (f": {near[0]!r}?" if near else ""))


def explain_spanning(engine, collective, nbytes):
    """``Comm.explain`` for a communicator over several nodes."""
    if collective in ("scan", "exscan") and not engine.in_rank_order:
        return Explanation(collective, nbytes, "MPI", "MPI's own", {},
                           "the nodes do not hold the ranks in their order")
    if engine.data_refused and not engine.is_inline(collective, 0, nbytes):
        return Explanation(collective, nbytes, "MPI", "MPI's own", {},
                           "the memory could not be reserved on all nodes")
    algorithm, parameters, learned = engine.describe(collective, nbytes)
    reasons = ["its ranks are on several nodes", *learned]
    if engine.span.unheeded():
        reasons.append(engine.span.unheeded())
    if engine.notices.unwatched:
        reasons.append("nobody watches whether other nodes vanish "
                       f"({engine.notices.unwatched})")
    return Explanation(collective, nbytes, "shared memory and network", algorithm, parameters,
                       "; ".join(reasons))


def explain_on_node(engine, collective, nbytes):
    """The same for a communicator of one node."""
    row = decision_for(engine.decisions, collective, nbytes)
    learned, why = engine.what_is_learned(collective, nbytes)
    if why is not None:
        row = replace(learned or row, reason=why)
    inline = engine.is_inline(collective, row.number, nbytes)
    stores, why = engine.stores_in_use(
        COLLECTIVE_NUMBERS[collective],
        nbytes // engine.size if collective == "reduce_scatter" else nbytes)
    if engine.sends_messages(collective, nbytes):
        if engine.streams_refused:
            return Explanation(collective, nbytes, "MPI", "MPI's own", {},
                               "the streams could not be reserved")
        parameters = {"stores": stores, "stores_because": why,
                      "around_caches_from": engine.around_caches_from(collective)}
        if collective == "gather":
            result = engine.result_in_use(nbytes * engine.size)
            if result is not None:
                parameters["root_writes"], parameters["root_writes_because"] = result
        if nbytes > engine.stream_inline:
            parameters["chunk_bytes"] = engine.chunk_bytes(collective, nbytes)
        reason = row.reason
        if engine.uses_heaps and collective in engine.direct_sizes:
            parameters["in_place_from"] = max(engine.direct_sizes[collective],
                                              engine.stream_inline + 1)
            reason += ("; a message of so many bytes (in_place_from) that lies in its sender's "
                       "shared heap is used where it lies")
            if collective in engine.measured_in_heaps:
                reason += ", where that is measured to be faster"
        if collective in engine.kernel_copy_sizes and row.number == 0:
            parameters["kernel_copy_from"] = engine.kernel_copy_sizes[collective]
            reason += ("; what a rank hands out is read in its memory through the kernel if it "
                       "is so many bytes (kernel_copy_from)")
            if collective in engine.measured_routes:
                reason += " and that is measured to be faster"
                route = engine.route_in_use(collective, nbytes)
                if route is not None:
                    parameters["route"], parameters["route_because"] = route
        return Explanation(collective, nbytes, "shared memory", row.algorithm, parameters,
                           reason)
    if engine.data_refused and not inline and collective != "barrier" and nbytes > 0:
        return Explanation(collective, nbytes, "MPI", "MPI's own", {},
                           "the data regions could not be reserved")
    parameters = {name: getattr(row, name)
                  for name in RADICES.get((collective, row.algorithm), ())}
    if inline and collective != "barrier":
        parameters["inline"] = True
    elif collective != "barrier":
        parameters.update(section_bytes=row.section_bytes, segments=row.segments,
                          pipelined=row.pipelined, stores=stores, stores_because=why)
        around_caches_from = engine.around_caches_from(collective)
        if around_caches_from is not None:
            parameters["around_caches_from"] = around_caches_from
    reason = row.reason
    if row.algorithm == SHARED_HEAP:
        reason += ": arrays there are read and written where they lie, others are staged"
        if collective in engine.measured_in_heaps:
            reason += "; or all are, where that is measured to be faster"
    elif engine.uses_heaps and collective != "barrier":
        reason += "; staged, wherever the arrays lie"
    return Explanation(collective, nbytes, "shared memory", row.algorithm, parameters, reason,
                       *row.evidence(nbytes))


class Collectives(Reductions, Movement, Objects):
    """The accelerated methods; mixed into mpi4py's communicator classes."""

    __slots__ = ()

    # ------------------------------------------------------------------ collectives

    def Barrier(self):
        """Synchronise all ranks (all-read flags by default: every rank reads everybody's)."""
        cdef Engine engine = engine_of(self)
        if engine is None:
            count_fallback(self, "barrier")
            return MPI.Comm.Barrier(self)
        engine.barrier_(engine.plans.choose(COLLECTIVE_BARRIER, 0), True)

    # ------------------------------------------------------------------ what it does and why

    @property
    def engine(self):
        """The compiled engine; None where all collectives are MPI's own. Collective at first."""
        return engine_of(self)

    @property
    def uses_heap(self):
        """Whether arrays in shared heaps are read and written where they lie. Collective at first.
        """
        cdef Engine engine = engine_of(self)
        return engine is not None and engine.uses_heaps

    @property
    def may_use_heap(self):
        """The same, as far as this rank knows by itself: before the first collective, what its own
        settings say. Local.
        """
        cdef State state = state_of(self)
        if not state.established:
            return state.config.heap
        return state.engine is not None and state.engine.uses_heaps

    def explain(self, collective, nbytes=0):
        """Which algorithm, parameters and path a call of ``nbytes`` bytes takes, and why.

        Collective if no collective was called yet (the segment is made then). ValueError for a name
        that mpi4py's communicators do not have.
        """
        cdef Engine engine = engine_of(self)
        asked = collective.lower()
        collective = asked.removesuffix("_block")
        if collective not in ALGORITHMS and collective[:-1] in ALGORITHMS:
            collective = collective[:-1]                       # Gatherv, Alltoallw
        if collective not in ALGORITHMS:
            check_is_of_mpi(collective)
            return Explanation(collective, nbytes, "MPI", "MPI's own", {},
                               "not among smcoll's collectives")
        if engine is None:
            return Explanation(collective, nbytes, "MPI", "MPI's own", {}, state_of(self).reason)
        found = (explain_spanning(engine, collective, nbytes) if isinstance(engine, SpanningEngine)
                 else explain_on_node(engine, collective, nbytes))
        if engine.calls_from_c is not None:
            why = engine.calls_from_c.explain(
                asked, nbytes // engine.size if collective == "reduce_scatter" else nbytes)
            if why is not None:
                found = replace(found, reason=f"{found.reason}; {why}")
        return found

    def stats(self):
        """Rows ``{collective, algorithm, path, calls, from_c, bytes, seconds, direct_bytes}``, this
        rank's.

        ``from_c``: how many of the calls came from C. ``direct_bytes``: moved to and from other
        ranks' arrays without staging: in shared heaps, or read through the kernel.
        """
        return state_of(self).stats()

    # ------------------------------------------------------------------ life and death

    def _accelerated(self, made):
        return accelerate(made, state_of(self).config)

    @classmethod
    def _accelerated_new(cls, made):
        return accelerate(made, Config())

    def _keep_settings(self):
        state_of(self)

    def _is_predefined(self):
        return is_predefined(self)

    def __reduce__(self):
        # mpi4py pickles its predefined objects by name, and refuses all other communicators. The
        # name may stand for our object in the process that unpickles.
        _, (_, original) = MPI.Comm.__reduce__(self)
        return predefined, (original.__reduce__(),)

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


def predefined(name):
    """A predefined communicator, as ``mpi4py.MPI`` names it in this process."""
    return getattr(MPI, name)


class Comm(IntracommCreation, Collectives, MPI.Intracomm):
    """A communicator whose collectives go through one shared segment per node.

    ``Comm(parent, config=None)`` is collective over ``parent``, like ``parent.Dup()``: it has a
    context of its own. The segment is made at the first collective (``eager``: now), with rank 0's
    settings. ``Free()``, or the end of a ``with`` block, frees the segment too. Communicators made
    from it are smcoll's too, with its settings.

    Its methods stand in ``movement`` (Bcast to Alltoallw), ``reductions``, ``objects`` (the
    lower-case ones) and ``creation``.
    """

    __slots__ = ("_state",)

    def __new__(cls, comm=None, config=None):
        if comm is None:
            return MPI.Intracomm.__new__(cls)
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"expected an MPI.Intracomm, not {kind_of(comm)}")
        check_config(config)
        duplicate = MPI.Intracomm.Dup(MPI.Intracomm(comm))
        self = MPI.Intracomm.__new__(cls, duplicate)
        adopt(self, config or Config(), owned=True)
        return self

    def __init__(self, comm=None, config=None):
        pass


class Cartcomm(CartcommCreation, Collectives, MPI.Cartcomm):
    """A Cartesian communicator with smcoll's collectives (made by ``Create_cart`` or ``wrap``)."""

    __slots__ = ("_state",)


class Graphcomm(IntracommCreation, Collectives, MPI.Graphcomm):
    """A graph communicator with smcoll's collectives (made by ``Create_graph`` or ``wrap``)."""

    __slots__ = ("_state",)


class Distgraphcomm(IntracommCreation, Collectives, MPI.Distgraphcomm):
    """A distributed graph communicator with smcoll's collectives.

    Made by ``Create_dist_graph``, ``Create_dist_graph_adjacent`` or ``wrap``.
    """

    __slots__ = ("_state",)


class Intercomm(IntercommCreation, MPI.Intercomm):
    """An inter-communicator between smcoll communicators: its collectives are MPI's own.

    What ``Merge`` makes of it is a smcoll communicator, so both groups must be smcoll's.
    """

    __slots__ = ()

    def _accelerated(self, made):
        return accelerate(made, MPI.Comm.Get_attr(self, keyvals().config))

    def _keep_settings(self):
        pass


cdef tuple _KINDS = ((MPI.Cartcomm, Cartcomm), (MPI.Graphcomm, Graphcomm),
                     (MPI.Distgraphcomm, Distgraphcomm), (MPI.Intracomm, Comm),
                     (MPI.Intercomm, Intercomm))


cdef with_our_class(comm):
    """A second object with this handle, of our class for its kind."""
    for plain, accelerated in _KINDS:
        if isinstance(comm, plain):
            return plain.__new__(accelerated, comm)
    raise TypeError(f"expected an intracommunicator, not {kind_of(comm)}")


cdef str kind_of(comm):
    """For messages. Of COMM_NULL, as Split gives it to ranks that are left out, the type is that of
    any communicator."""
    return "COMM_NULL" if comm == MPI.COMM_NULL else type(comm).__name__


def check_config(config):
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"expected a smcoll.Config, not {type(config).__name__}")


cdef adopt(comm, config, bint owned):
    """Give a new handle its settings, and its segment at once if they say eager."""
    cdef State state = new_state(comm, config)
    state.owned = owned
    state.attach_to(comm)
    if config.eager:
        state.make(comm)


cdef accelerate(made, config):
    """What mpi4py made from a smcoll communicator, as one; it has this object only."""
    if not made:
        return made
    comm = made if isinstance(made, (Collectives, Intercomm)) else with_our_class(made)
    if isinstance(comm, Intercomm):
        MPI.Comm.Set_attr(comm, keyvals().config, config)
    else:
        adopt(comm, config, owned=True)
    return comm


def found_again(comm):
    """What mpi4py found for a handle; accelerated if the handle is a smcoll communicator's.

    That is a fact about the handle, so the same on all its ranks.
    """
    if not isinstance(comm, MPI.Intracomm) or not comm:
        return comm
    if (MPI.Comm.Get_attr(comm, keyvals().config) is not None
            or installed_config() is not None and is_predefined(comm)):
        return wrap(comm)
    return comm


def wrap(comm, config=None):
    """The same communicator (the same handle), accelerated, of its own kind.

    All objects with one handle share one engine; ``config`` counts when the handle is wrapped for
    the first time. Not collective, unless ``eager``.
    """
    check_config(config)
    if isinstance(comm, Collectives):
        return comm
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"expected an intracommunicator, not {kind_of(comm)}")
    wrapped = with_our_class(comm)
    if MPI.Comm.Get_attr(wrapped, keyvals().state) is None:
        adopt(wrapped, config or settings_for(wrapped), owned=False)
    else:
        state_of(wrapped)
    return wrapped


def stand_in(original, config):
    """An accelerated object for MPI.COMM_WORLD or MPI.COMM_SELF.

    Without a call to MPI, which the program may initialise later: the handle is copied as it is.
    """
    set_installed_config(config)
    accelerated = MPI.Intracomm.__new__(Comm)
    memcpy(<void *> <uintptr_t> MPI._addressof(accelerated),
           <void *> <uintptr_t> MPI._addressof(original), MPI._sizeof(original))
    return accelerated
