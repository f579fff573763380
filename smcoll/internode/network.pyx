"""Messages between the nodes of a communicator: nonblocking MPI, completed in the one wait.

A message has a header that says of which call it is; a short one travels with it, a long one as a
second message, straight from and to its place. So ranks of different nodes that disagree about a
call find out as ranks of one node do (protocol rule 9).

All ranks of a communicator's group share one hidden communicator with all others of that group:
each has tags of its own. It lasts until the program ends, since freeing it would be collective.
"""

import threading
import time

from mpi4py import MPI

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from smcoll.base.kernels cimport copy_bytes
from smcoll.engine.failure cimport AcrossNodes
from smcoll.engine.node cimport NodeEngine
from smcoll.internode.notices cimport NOTICE_TAGS, Notices, is_same_call


cdef enum:
    HEADER = sizeof(Header)
    SHORT = 4096                   # bytes that travel with the header
    # Tags of a communicator, from its first one on (OF_NOTICES after these): headers have that,
    # then
    LONG = 1                       # what is too long for its header's message
    DIRECT = 2                     # messages without header
    TAGS = OF_NOTICES + NOTICE_TAGS
    MOST_TOLD = 16                 # hidden communicators of a group that a set-up record can name

# Until when (s) a rank that gave up waits for what it can't call back.
_GRACE = 0.1
LOOK_FOR_NEWS_EVERY = 64           # waits for messages
# Of more bytes mpi4py makes no count where the MPI has no large ones.
LARGEST_COUNT = 2**31 - 1

_hidden = {}                       # by the group's ranks, then by number
_drawing = threading.Lock()
_unfinished = []                   # of ranks that gave up: MPI may still use this memory
_world = MPI.COMM_WORLD            # kept: install() rebinds the name


class Hidden:
    """A group's communicator for messages between nodes, and the first tag that is free."""

    def __init__(self, comm):
        # Not Dup: that would copy attributes and the topology.
        self.comm = MPI.Intracomm.Split(comm, 0, MPI.Comm.Get_rank(comm))
        # Whatever the user's does: a message that is too long is told like other mistakes.
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.next_tag = TAGS           # the first ones are of whom it was made for
        self.watches = {}              # by what node each rank is on: a leader's watch, or why none
        self.last_tag = min(MPI.Comm.Get_attr(self.comm, MPI.TAG_UB) or 32767, 1 << 30)

    def draw_tags(self):
        """The first of the tags of a new communicator, or None where they are used up.

        On one rank, which tells the others: threads that make communicators at the same time come
        in another order on each rank.
        """
        with _drawing:
            first = self.next_tag
            if first + TAGS > self.last_tag:
                return None
            self.next_tag = first + TAGS
        return first


def hidden_communicator(comm, gather, number):
    """A hidden communicator of ``comm``'s group and the first of ``comm``'s tags in it. Collective.

    One that all ranks know already, else a new one, called ``number``. ``gather(comm, record)``
    gives every rank's record. MPI.Exception, on all ranks, where MPI makes no further one.
    """
    group, world = comm.Get_group(), _world.Get_group()
    ranks = tuple(MPI.Group.Translate_ranks(group, None, world))
    group.Free()
    world.Free()
    known = {} if MPI.UNDEFINED in ranks else dict(_hidden.get(ranks, {}))
    offer = None
    if MPI.Comm.Get_rank(comm) == 0:
        drawn = ((name, hidden.draw_tags()) for name, hidden in known.items())
        offer = next((pair for pair in drawn if pair[1] is not None), None)
    records = gather(comm, {"known": list(known)[-MOST_TOLD:], "offer": offer})
    if records[0]["offer"] is not None:
        name, tag = records[0]["offer"]
        if all(name in record["known"] for record in records):
            return known[name], tag
    hidden = Hidden(comm)
    if MPI.UNDEFINED not in ranks:
        _hidden.setdefault(ranks, {})[number] = hidden
    return hidden, 0


cdef start(method, const char *address, size_t nbytes, int peer, int tag):
    """``method``: a communicator's Isend or Irecv, for a message of so many bytes."""
    memory = MPI.memory.fromaddress(<size_t> address, nbytes)
    if nbytes <= <size_t> LARGEST_COUNT:
        return method([memory, MPI.BYTE], peer, tag)
    datatype = one_element_of(nbytes)
    try:
        return method([memory, 1, datatype], peer, tag)
    finally:
        datatype.Free()            # MPI keeps it as long as the message needs it


cdef one_element_of(size_t nbytes):
    """A datatype of so many bytes."""
    cdef size_t most = LARGEST_COUNT
    whole = MPI.BYTE.Create_contiguous(most)
    wholes = whole.Create_contiguous(nbytes // most)
    datatype = MPI.Datatype.Create_struct(
        [1, nbytes % most], [0, nbytes - nbytes % most], [wholes, MPI.BYTE])
    whole.Free()
    wholes.Free()
    return datatype.Commit()


cdef class Parcel:
    """One message to or from a rank of another node."""

    cdef bint test(self) except -1:
        """Whether it is through; moves it on."""
        if self.done:
            return True
        if self.first is not None:
            if not self.first.Test():
                return False
            self.first = None
            if self.incoming:
                self.open()
        if self.rest is not None:
            try:
                if not self.rest.Test():
                    return False
            except MPI.Exception as error:
                # Longer than the room for it; who receives it sees that in `nbytes`.
                if error.Get_error_class() != MPI.ERR_TRUNCATE:
                    raise
            self.rest = None
        self.done = True
        self.kept = None
        self.network.in_flight.discard(self)
        self.network.stagings.append(self.staging)
        self.staging = None
        return True

    cdef call_back(self):
        """Expect it no longer. What is sent can't be called back."""
        if self.incoming:
            for request in (self.first, self.rest):
                if request:            # no null handle, as an error leaves it
                    request.Cancel()

    cdef bint at_rest(self) except -1:
        """Whether MPI leaves its memory alone."""
        return ((self.first is None or self.first.Test())
                and (self.rest is None or self.rest.Test()))

    cdef open(self):
        """The header is here: is it the message that we wait for, and where is the rest?"""
        cdef Network network = self.network
        cdef Notices notices = network.notices
        cdef char *staging = self.staging
        cdef Header *header = <Header *> staging
        if (not is_same_call(&header.call, &notices.call)
                or header.call.history != notices.call.history):
            raise notices.disagreement(self.peer, &header.call)
        self.nbytes = header.nbytes
        if self.grows:
            self.grown = PyBytes_FromStringAndSize(NULL, self.nbytes)
            self.where = PyBytes_AS_STRING(self.grown)
            self.room = self.nbytes
        if self.nbytes <= SHORT:
            copy_bytes(self.where, staging + HEADER, min(self.nbytes, self.room))
            if self.rest is not None:
                # More was expected, which does not come.
                self.rest.Cancel()
                self.rest.Wait()
                self.rest = None
        elif self.rest is None:
            self.rest = start(network.comm.Irecv, self.where, self.room, self.peer,
                              network.tag + LONG)


cdef class Network:
    """The messages of one communicator that spans nodes, as one of its ranks sends them."""

    def __cinit__(self, comm, int tag, NodeEngine node, AcrossNodes across, placement,
                  Notices notices):
        self.comm = comm
        self.tag = tag
        self.node = node
        self.across = across
        self.placement = placement
        self.notices = notices
        self.stagings = []
        self.in_flight = set()

    cdef Parcel new_parcel(self, int peer, bint incoming):
        cdef Parcel parcel = Parcel.__new__(Parcel)
        parcel.network = self
        parcel.peer = peer
        parcel.incoming = incoming
        parcel.staging = self.stagings.pop() if self.stagings else bytearray(HEADER + SHORT)
        self.in_flight.add(parcel)
        return parcel

    cdef Parcel send(self, int peer, const char *data, size_t nbytes, kept=None):
        """Start a message; ``data`` stay as they are until it is through (``kept`` holds them)."""
        cdef Parcel parcel = self.new_parcel(peer, False)
        cdef char *staging = parcel.staging
        cdef Header *header = <Header *> staging
        cdef size_t together = HEADER
        header.call = self.notices.call
        header.nbytes = nbytes
        if nbytes <= SHORT:
            copy_bytes(staging + HEADER, data, nbytes)
            together += nbytes
        parcel.first = self.comm.Isend([parcel.staging, together, MPI.BYTE], peer, self.tag)
        if nbytes > SHORT:
            parcel.kept = kept
            parcel.rest = start(self.comm.Isend, data, nbytes, peer, self.tag + LONG)
        self.messages += 1
        self.message_bytes += nbytes
        return parcel

    cdef Parcel receive(self, int peer, char *where, size_t room, kept=None):
        """Expect a message of at most ``room`` bytes; of a longer one the first bytes arrive."""
        cdef Parcel parcel = self.new_parcel(peer, True)
        parcel.kept = kept
        parcel.where = where
        parcel.room = room
        parcel.first = self.comm.Irecv(parcel.staging, peer, self.tag)
        if room > SHORT:
            parcel.rest = start(self.comm.Irecv, where, room, peer, self.tag + LONG)
        return parcel

    cdef Parcel receive_any_length(self, int peer):
        """Expect a message whose length only its sender knows; it comes to lie in ``grown``."""
        cdef Parcel parcel = self.new_parcel(peer, True)
        parcel.grows = True
        parcel.first = self.comm.Irecv(parcel.staging, peer, self.tag)
        return parcel

    cdef Parcel send_directly(self, int peer, const char *data, size_t nbytes, kept):
        """Start a message of which ``peer`` knows otherwise that it comes, and how long it is."""
        cdef Parcel parcel = self.new_parcel(peer, False)
        parcel.kept = kept
        parcel.rest = start(self.comm.Isend, data, nbytes, peer, self.tag + DIRECT)
        self.messages += 1
        self.message_bytes += nbytes
        return parcel

    cdef Parcel receive_directly(self, int peer, char *where, size_t nbytes, kept):
        """Expect such a message."""
        cdef Parcel parcel = self.new_parcel(peer, True)
        parcel.kept = kept
        parcel.nbytes = nbytes
        parcel.rest = start(self.comm.Irecv, where, nbytes, peer, self.tag + DIRECT)
        return parcel

    cdef bint all_here(self) except -1:
        """Whether all parcels of this wait are through."""
        cdef Parcel parcel
        while self.waiting:
            parcel = self.waiting[-1]
            try:
                here = parcel.test()
            except MPI.Exception as error:
                self.notices.check_death(error, parcel.peer)
                raise
            if not here:
                # Who is waited for: the others may have come meanwhile.
                self.across.outside = self.placement.members[self.placement.node_of[parcel.peer]]
                return False
            self.waiting.pop()
        return True

    cdef int complete(self, list parcels) except -1:
        """Wait until these are through."""
        self.waiting = list(parcels)
        self.completed += 1
        if self.completed % LOOK_FOR_NEWS_EVERY == 0:
            # A leader that never waits for long does not look otherwise: they would pile up.
            self.notices.take_in()
        if not self.all_here():
            self.across.patience = 1.25
            self.node.wait_outside_stage(nothing_awaited, <void *> self)
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            self.across.outside = None
        self.waiting = None
        return 0

    def call_back(self, memory):
        """In a call that failed: MPI shall write no more into memory that may be freed now.

        What it has begun to move it moves on; ``memory`` and that of the messages is kept then.
        """
        cdef Parcel parcel
        cdef bint at_rest = False
        self.waiting = None
        for parcel in self.in_flight:
            parcel.call_back()
        end = time.monotonic() + _GRACE
        while not at_rest and time.monotonic() < end:
            at_rest = all([parcel_at_rest(parcel) for parcel in self.in_flight])
        if not at_rest:
            _unfinished.append((self.in_flight, memory))
        self.in_flight = set()


cdef bint parcel_at_rest(Parcel parcel):
    try:
        return parcel.at_rest()
    except MPI.Exception:
        return True                # an error is an end, too


cdef bint nothing_awaited(void *context) noexcept with gil:
    cdef Network self = <Network> context
    if self.error is not None:
        return True                # asked again
    try:
        return self.all_here()
    except BaseException as error:
        self.error = error
        return True
