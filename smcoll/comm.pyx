"""smcoll's communicators: mpi4py's own, with collectives through shared memory.

A method parses its buffers, asks the engine for the plan of so many bytes, and calls it: no Python
frame lies between the caller and the compiled loops. What can't go that way goes to MPI, decided by
things that are equal on all ranks only (DESIGN rule 3): no segment, an operation or element type
without a kernel.
"""

import atexit
import weakref
from dataclasses import dataclass
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from mpi4py import MPI

from smcoll.barrier cimport (
    COLLECTIVE_ALLREDUCE, COLLECTIVE_BARRIER, COLLECTIVE_BCAST, COLLECTIVE_REDUCE,
)
from smcoll.buffers cimport Message, Specification, parse, plain_array
from smcoll.engine cimport CARRIED_OUT, Engine
from smcoll.kernels cimport OPS
from smcoll.operations cimport NO_OP, code_of_op, mpi_takes

from smcoll.config import Config
from smcoll.creation import CartcommCreation, IntercommCreation, IntracommCreation
from smcoll.establish import establish
from smcoll.report import Report
from smcoll.select import decision_for

cdef object IN_PLACE = MPI.IN_PLACE

cdef enum:
    NUMPY_TYPES = 64

# [operation][numpy type]: MPI takes the pair and we have a kernel for it. Filled when first asked.
cdef bint _known_pair[OPS][NUMPY_TYPES]


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


cdef class State:
    """What belongs to a communicator's handle: its settings, and its engine once it is made.

    Kept as an MPI attribute, so that all Python objects with that handle share one sequence of
    calls, and freeing the handle ends it (DESIGN rule 15).
    """

    cdef Engine engine
    cdef readonly object config
    cdef readonly object reason
    cdef bint established
    cdef bint owned            # the handle was made by smcoll, for the object that it returned
    cdef bint closed           # the handle was freed, or the object given up
    cdef bint collected        # closed because no object was left, though the handle lives
    cdef int users             # Python objects that have this state at hand
    cdef dict mpi_calls
    cdef object __weakref__

    def __cinit__(self, config):
        self.config = config
        self.mpi_calls = {}

    cdef make(self, comm):
        if self.closed:
            raise MPI.Exception(MPI.ERR_COMM)
        self.engine, self.config, self.reason = establish(comm, self.config)
        self.established = True
        if self.config.verbose:
            _report.announce(comm, self.reason)
        _live_states.add(self)

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
            _report.add(self.stats())
        self.closed = True
        if self.engine is not None:
            self.engine.close()

    def stats(self):
        rows = [] if self.engine is None else self.engine.stats()
        for row in rows:
            if row["path"] == "MPI":
                row["reason"] = ("its operation or element type has no kernel"
                                 if not self.engine.data_refused else
                                 "the data regions could not be reserved")
        rows += [{"collective": name, "algorithm": "MPI's own", "path": "MPI", "calls": calls,
                  "bytes": 0, "seconds": 0.0, "reason": self.reason}
                 for name, calls in self.mpi_calls.items()]
        return rows


_live_states = weakref.WeakSet()
_report = Report()


@atexit.register
def _leave_all():
    # So that a peer which still waits learns that this rank ended in good order.
    for state in list(_live_states):
        state.close()
    _report.print_table()


def _forget(comm, keyval, state):
    state.close()


cdef class _Keyvals:
    """The two attributes on a communicator's handle. Made when MPI is initialised for sure."""

    cdef int state
    cdef int config            # copied: a duplicate has its parent's settings

    def __cinit__(self):
        self.state = MPI.Comm.Create_keyval(delete_fn=_forget)
        self.config = MPI.Comm.Create_keyval(copy_fn=True)


cdef _Keyvals _made_keyvals = None


cdef _Keyvals keyvals():
    global _made_keyvals
    if _made_keyvals is None:
        _made_keyvals = _Keyvals()
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


cdef State new_state(comm, config):
    cdef State state = State(config)
    MPI.Comm.Set_attr(comm, keyvals().config, config)
    MPI.Comm.Set_attr(comm, keyvals().state, state)
    return state


cdef inline Engine engine_of(comm):
    """The engine of a communicator; None where all its collectives are MPI's own."""
    cdef State state
    try:
        state = comm._state
    except AttributeError:
        state = state_of(comm)
    if state.established:
        return state.engine
    state.make(comm)
    return state.engine


cdef own_mpi(comm, collective):
    # No engine: MPI's own blocking collective, counted for stats().
    cdef State state = state_of(comm)
    state.mpi_calls[collective] = state.mpi_calls.get(collective, 0) + 1


cdef bint have_kernel(Engine engine, op, int op_code, Specification spec, object original):
    """Whether we carry out this operation on this type; raises what MPI raises if it refuses it."""
    cdef Message plain
    if spec.datatype == MPI.DATATYPE_NULL:
        mpi_takes(op, spec.datatype)
    if op_code == NO_OP or spec.message.element_type < 0:
        return False
    if engine.kernel_of(op_code, spec.message.element_type) == NULL:
        return False
    mpi_takes(op, spec.datatype)
    if plain_array(original, False, &plain):
        _known_pair[op_code][plain.numpy_type] = True
    return True


cdef check_root(Engine engine, int root):
    if not 0 <= root < engine.team.size:
        raise MPI.Exception(MPI.ERR_ROOT)


cdef check_same(Specification send, Specification recv):
    if send.datatype != recv.datatype:
        raise ValueError("mismatch in send and receive MPI datatypes")
    if send.message.count != recv.message.count:
        raise ValueError(f"mismatch in send count {send.message.count} "
                         f"and receive count {recv.message.count}")


cdef inline bint in_place(sendbuf):
    return sendbuf is None or sendbuf is IN_PLACE


class Collectives:
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

    def Bcast(self, buf, int root=0):
        """Broadcast ``buf`` from ``root`` (GS 3.3: a fan-out tree).

        Any buffer argument that mpi4py takes; the bytes of the type signature must agree.
        """
        cdef Engine engine = engine_of(self)
        cdef Message message
        cdef Specification spec
        if engine is None:
            own_mpi(self, "bcast")
            return MPI.Comm.Bcast(self, buf, root)
        if plain_array(buf, engine.team.rank != root, &message):
            check_root(engine, root)
            if engine.bcast_(message.address, message.nbytes, root,
                             engine.choose(COLLECTIVE_BCAST, message.nbytes)) == CARRIED_OUT:
                return
        else:
            spec = parse(buf, engine.team.rank != root)
            check_root(engine, root)
            message = spec.message
            if broadcast(self, engine, spec, root) == CARRIED_OUT:
                return
        engine.through_mpi("bcast", lambda: MPI.Comm.Ibcast(self, buf, root), root=root,
                           nbytes=message.nbytes)

    def Reduce(self, sendbuf, recvbuf, op=MPI.SUM, int root=0):
        """Reduce to ``root``: GS 3.2's fan-in tree, or reduce-scatter + gather for long vectors."""
        cdef Engine engine = engine_of(self)
        cdef Message send, recv
        cdef int op_code
        cdef bint at_root
        if engine is None:
            own_mpi(self, "reduce")
            return MPI.Comm.Reduce(self, sendbuf, recvbuf, op, root)
        op_code = code_of_op(op)
        at_root = engine.team.rank == root
        if op_code != NO_OP and 0 <= root < engine.team.size:
            if at_root and plain_array(recvbuf, True, &recv) \
                    and _known_pair[op_code][recv.numpy_type]:
                send = recv
                if in_place(sendbuf) or plain_array(sendbuf, False, &send) \
                        and send.numpy_type == recv.numpy_type and send.count == recv.count:
                    if reduce_message(engine, &send, recv.address, op_code, root) == CARRIED_OUT:
                        return
            elif not at_root and plain_array(sendbuf, False, &send) \
                    and _known_pair[op_code][send.numpy_type]:
                if reduce_message(engine, &send, NULL, op_code, root) == CARRIED_OUT:
                    return
        reduce_any(self, engine, sendbuf, recvbuf, op, op_code, root)

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        """Reduce to all ranks, bitwise the same result on each.

        By size: all-read exchange, tiled reduction; GS 3.1's algorithms by name.
        """
        cdef Engine engine = engine_of(self)
        cdef Message send, recv
        cdef int op_code
        if engine is None:
            own_mpi(self, "allreduce")
            return MPI.Comm.Allreduce(self, sendbuf, recvbuf, op)
        op_code = code_of_op(op)
        if op_code != NO_OP and plain_array(recvbuf, True, &recv) \
                and _known_pair[op_code][recv.numpy_type]:
            send = recv
            if in_place(sendbuf) or plain_array(sendbuf, False, &send) \
                    and send.numpy_type == recv.numpy_type and send.count == recv.count:
                if engine.allreduce_(send.address, recv.address, recv.count, recv.element_type,
                                     op_code, engine.choose(COLLECTIVE_ALLREDUCE, recv.nbytes)
                                     ) == CARRIED_OUT:
                    return
        allreduce_any(self, engine, sendbuf, recvbuf, op, op_code)

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
        from smcoll.algos import ALGORITHMS, RADICES

        collective = collective.lower()
        if collective not in ALGORITHMS:
            return Explanation(collective, nbytes, "MPI", "MPI's own", {},
                               "not among smcoll's collectives")
        if engine is None:
            return Explanation(collective, nbytes, "MPI", "MPI's own", {}, state_of(self).reason)
        row = decision_for(engine.decisions, collective, nbytes)
        inline = engine.is_inline(collective, row.number, nbytes)
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


# The objects themselves: install() rebinds the names.
cdef object _world = MPI.COMM_WORLD
cdef object _one_rank = MPI.COMM_SELF
cdef object _installed_config = None


def predefined(name):
    """A predefined communicator, as ``mpi4py.MPI`` names it in this process."""
    return getattr(MPI, name)


cdef int broadcast(comm, Engine engine, Specification spec, int root) except -1:
    cdef Message message = spec.message
    cdef Message packed_message
    if spec.contiguous:
        return engine.bcast_(message.address, message.nbytes, root,
                             engine.choose(COLLECTIVE_BCAST, message.nbytes))
    # What MPI refuses (a null or an uncommitted datatype) it refuses without communication, too.
    MPI.Intracomm.Bcast(_one_rank, [bytearray(1), 1, spec.datatype], 0)
    # The layout is a local property: packed bytes go the way that contiguous ones would.
    if engine.team.rank == root:
        packed = spec.pack(comm)
    else:
        packed = bytearray(message.nbytes)
    packed_message = parse(packed, True).message
    cdef int path = engine.bcast_(packed_message.address, message.nbytes, root,
                                  engine.choose(COLLECTIVE_BCAST, message.nbytes))
    if path == CARRIED_OUT and engine.team.rank != root:
        spec.unpack(packed, comm)
    return path


cdef int reduce_message(Engine engine, Message *send, char *recv, int op_code,
                        int root) except -1:
    return engine.reduce_(send.address, recv, send.count, send.element_type, op_code, root,
                          engine.choose(COLLECTIVE_REDUCE, send.nbytes))


cdef reduce_any(comm, Engine engine, sendbuf, recvbuf, op, int op_code, int root):
    """Any buffers, any operation: parse in full, ask MPI about the pair, take the agreed path."""
    cdef Specification recv = None, send = None
    cdef bint at_root = engine.team.rank == root
    if at_root:
        recv = parse(recvbuf, True)
    if at_root and in_place(sendbuf):
        send = recv
        original = recvbuf
    else:
        send = parse(sendbuf, False)
        original = sendbuf
        if at_root:
            check_same(send, recv)
    check_root(engine, root)
    if have_kernel(engine, op, op_code, send, original):
        if reduce_message(engine, &send.message, recv.message.address if at_root else NULL,
                          op_code, root) == CARRIED_OUT:
            return
    engine.through_mpi("reduce", lambda: MPI.Comm.Ireduce(comm, sendbuf, recvbuf, op, root),
                       root=root, op=op_code & 31, element_type=send.message.element_type & 63,
                       nbytes=send.message.nbytes)


cdef allreduce_any(comm, Engine engine, sendbuf, recvbuf, op, int op_code):
    """Any buffers, any operation: parse in full, ask MPI about the pair, take the agreed path."""
    cdef Specification recv = parse(recvbuf, True), send
    if in_place(sendbuf):
        send = recv
    else:
        send = parse(sendbuf, False)
        check_same(send, recv)
    if have_kernel(engine, op, op_code, recv, recvbuf):
        if engine.allreduce_(send.message.address, recv.message.address, recv.message.count,
                             recv.message.element_type, op_code,
                             engine.choose(COLLECTIVE_ALLREDUCE, recv.message.nbytes)
                             ) == CARRIED_OUT:
            return
    engine.through_mpi("allreduce", lambda: MPI.Comm.Iallreduce(comm, sendbuf, recvbuf, op),
                       op=op_code & 31, element_type=recv.message.element_type & 63,
                       nbytes=recv.message.nbytes)


class Comm(IntracommCreation, Collectives, MPI.Intracomm):
    """A communicator whose collectives go through one shared segment per node.

    ``Comm(parent, config=None)`` is collective over ``parent``, like ``parent.Dup()``: it has a
    context of its own. The segment is made at the first collective (``eager``: now), with rank 0's
    settings. ``Free()``, or the end of a ``with`` block, frees the segment too. Communicators made
    from it are smcoll's too, with its settings.
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
    raise TypeError(f"expected an intracommunicator, not {type(comm).__name__}")


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


cdef bint is_predefined(comm) except -1:
    return comm == _world or comm == _one_rank


def found_again(comm):
    """What mpi4py found for a handle; accelerated if the handle is a smcoll communicator's.

    That is a fact about the handle, so the same on all its ranks.
    """
    if not isinstance(comm, MPI.Intracomm) or not comm:
        return comm
    if (MPI.Comm.Get_attr(comm, keyvals().config) is not None
            or _installed_config is not None and is_predefined(comm)):
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
        raise TypeError(f"expected an intracommunicator, not {type(comm).__name__}")
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
    global _installed_config
    _installed_config = config
    accelerated = MPI.Intracomm.__new__(Comm)
    memcpy(<void *> <uintptr_t> MPI._addressof(accelerated),
           <void *> <uintptr_t> MPI._addressof(original), MPI._sizeof(original))
    return accelerated
