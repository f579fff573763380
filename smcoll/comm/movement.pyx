"""Bcast, Gather(v), Scatter(v), Allgather(v) and Alltoall(v, w) of a communicator.

Where a datatype has holes, its bytes are gathered and laid out a chunk at a time on their way
through shared memory: the layout is a local property and may not select another path.
"""

from functools import partial

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from mpi4py import MPI

from libc.stdint cimport int64_t

from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLTOALL, COLLECTIVE_BCAST, COLLECTIVE_GATHER,
    COLLECTIVE_SCATTER,
)
from smcoll.buffers.blocks cimport (
    Block, Blocks, Sides, check_message, parse_allgather, parse_allgatherv, parse_alltoall,
    parse_alltoallv, parse_alltoallw, parse_gather, parse_gatherv, parse_scatter, parse_scatterv,
)
from smcoll.buffers.buffers cimport Message, Specification, parse, plain_array
from smcoll.buffers.messages cimport Gathered, Messages
from smcoll.coll.streams cimport Transfer
from smcoll.comm.state cimport check_root, engine_of, count_fallback
from smcoll.datatype.convertor cimport (
    Convertor, Runs, copy_message, pack_next, start_convertor, unpack_next,
)
from smcoll.datatype.datatypes cimport Typemap, typemap_of
from smcoll.engine.engine cimport Engine, stream_signature
from smcoll.engine.reservation cimport CARRIED_OUT, USE_MPI
from smcoll.sync.domains cimport DomainView, Holders, leader_of, members_of

from smcoll.algorithms import ALGORITHMS
from smcoll.errors import Error

cdef int SCATTER_TWO_STAGE = ALGORITHMS["scatter"].index("two_stage")

ctypedef Sides (*rooted_parser)(object, object, int, int, int)
ctypedef Sides (*parser)(object, object, int, int)


class Movement:
    """The methods that move data; mixed into mpi4py's communicator classes."""

    __slots__ = ()

    def Bcast(self, buf, int root=0):
        """Broadcast ``buf`` from ``root`` (GS 3.3: a fan-out tree).

        Any buffer argument that mpi4py takes; the bytes of the type signature must agree.
        """
        cdef Engine engine = engine_of(self)
        cdef Message message
        cdef Specification spec
        if engine is None:
            count_fallback(self, "bcast")
            return MPI.Comm.Bcast(self, buf, root)
        if plain_array(buf, engine.rank != root, &message):
            check_root(engine, root)
            if engine.bcast_(message.address, message.nbytes, root,
                             engine.plans.choose(COLLECTIVE_BCAST, message.nbytes)) == CARRIED_OUT:
                return
        else:
            spec = parse(buf, engine.rank != root)
            check_message(spec)
            check_root(engine, root)
            message = spec.message
            if broadcast(engine, spec, root) == CARRIED_OUT:
                return
        engine.through_mpi("bcast", partial(MPI.Comm.Ibcast, self, buf, root), root=root,
                           nbytes=message.nbytes)

    def Gather(self, sendbuf, recvbuf, int root=0):
        """Gather equal blocks at ``root``: every rank's goes there through its stream."""
        gather(self, parse_gather, sendbuf, recvbuf, root, "Gather")

    def Gatherv(self, sendbuf, recvbuf, int root=0):
        """Gather blocks of any lengths at ``root``."""
        gather(self, parse_gatherv, sendbuf, recvbuf, root, "Gatherv")

    def Scatter(self, sendbuf, recvbuf, int root=0):
        """Scatter equal blocks from ``root``."""
        scatter(self, parse_scatter, sendbuf, recvbuf, root, "Scatter")

    def Scatterv(self, sendbuf, recvbuf, int root=0):
        """Scatter blocks of any lengths from ``root``."""
        scatter(self, parse_scatterv, sendbuf, recvbuf, root, "Scatterv")

    def Allgather(self, sendbuf, recvbuf):
        """Gather equal blocks at all ranks: each is posted once and read by everybody."""
        allgather(self, parse_allgather, sendbuf, recvbuf, "Allgather")

    def Allgatherv(self, sendbuf, recvbuf):
        """Gather blocks of any lengths at all ranks."""
        allgather(self, parse_allgatherv, sendbuf, recvbuf, "Allgatherv")

    def Alltoall(self, sendbuf, recvbuf):
        """Every rank sends a block of equal length to every rank."""
        alltoall(self, parse_alltoall, sendbuf, recvbuf, "Alltoall")

    def Alltoallv(self, sendbuf, recvbuf):
        """Every rank sends a block of any length to every rank."""
        alltoall(self, parse_alltoallv, sendbuf, recvbuf, "Alltoallv")

    def Alltoallw(self, sendbuf, recvbuf):
        """The same with a datatype for each pair of ranks."""
        alltoall(self, parse_alltoallw, sendbuf, recvbuf, "Alltoallw")


# ---------------------------------------------------------------------- layouts

@cython.freelist(4)
cdef class _Layouts:
    """The flattened datatypes of some blocks, kept alive for a call."""

    cdef Blocks blocks
    cdef list typemaps             # one for each rank; None: no datatype has holes

    def __cinit__(self, Blocks blocks):
        self.blocks = blocks
        if not blocks.contiguous:
            self.typemaps = [typemap_of(datatype) for datatype in
                             blocks.datatypes or [blocks.datatype] * blocks.ranks]

    cdef const Runs *runs(self, int rank):
        if self.typemaps is None:
            return NULL
        return runs_of(self.typemaps[rank])

    cdef void place(self, Convertor *convertor, int rank):
        cdef Block *block = &self.blocks.block[rank]
        start_convertor(convertor, block.address, self.runs(rank), block.nbytes)

    cdef void send(self, Messages messages, int rank):
        """This rank's block for another one."""
        cdef Block *block = &self.blocks.block[rank]
        messages.send(rank, block.address, block.nbytes, self.runs(rank))

    cdef Transfer *receive(self, Messages messages, int rank):
        """The block from another one."""
        cdef Block *block = &self.blocks.block[rank]
        return messages.receive(rank, block.address, block.nbytes, self.runs(rank))


cdef inline const Runs *runs_of(Typemap typemap):
    return NULL if typemap is None else &typemap.runs


cdef inline Typemap layout_of(Specification spec):
    return None if spec.contiguous else typemap_of(spec.datatype)


cdef int copy_own(Convertor *source, Convertor *target):
    """This rank's message to itself; 1 where it was truncated."""
    copy_message(source, target, min(source.nbytes, target.nbytes))
    return source.nbytes > target.nbytes


cdef check_aliases(Blocks send, Blocks recv):
    """A block that arrives would overwrite one that has not left: MPI asks for IN_PLACE.

    Of types with holes, or whose data begin elsewhere, one array can hold both.
    """
    cdef int rank
    if not (send.contiguous and recv.contiguous):
        return
    for rank in range(send.ranks):
        if (send.block[rank].address == recv.block[rank].address != NULL
                and send.block[rank].nbytes > 0 and recv.block[rank].nbytes > 0):
            raise MPI.Exception(MPI.ERR_BUFFER)


cdef check_truncated(int truncated):
    if truncated:
        raise MPI.Exception(MPI.ERR_TRUNCATE)


# ---------------------------------------------------------------------- the collectives

# Methods of MPI's own are looked up by name where they are needed: a closure or two attributes a
# call cost as much as all of a short call's arguments.
cdef nonblocking(str method):
    return getattr(MPI.Comm, f"I{method.lower()}")


cdef int broadcast(Engine engine, Specification spec, int root) except -1:
    cdef Message message = spec.message
    cdef Typemap typemap = layout_of(spec)
    if typemap is None:
        return engine.bcast_(message.address, message.nbytes, root,
                             engine.plans.choose(COLLECTIVE_BCAST, message.nbytes))
    # Packed bytes go the way that contiguous ones would.
    cdef Convertor convertor
    cdef bytearray packed = bytearray(max(message.nbytes, <size_t> 1))
    start_convertor(&convertor, message.address, &typemap.runs, message.nbytes)
    if engine.rank == root:
        pack_next(&convertor, packed, message.nbytes)
    cdef int path = engine.bcast_(packed, message.nbytes, root,
                                  engine.plans.choose(COLLECTIVE_BCAST, message.nbytes))
    if path == CARRIED_OUT and engine.rank != root:
        unpack_next(&convertor, packed, message.nbytes)
    return path


cdef gather(comm, rooted_parser parse_sides, sendbuf, recvbuf, int root, str method):
    cdef Engine engine = engine_of(comm)
    cdef Sides sides
    cdef _Layouts layouts
    cdef Messages messages
    cdef Typemap typemap = None
    cdef int rank, mine, size
    if engine is None:
        count_fallback(comm, "gather")
        return getattr(MPI.Comm, method)(comm, sendbuf, recvbuf, root)
    mine, size = engine.rank, engine.size
    sides = parse_sides(sendbuf, recvbuf, root, mine, size)
    check_root(engine, root)
    if not sides.send_in_place:
        typemap = layout_of(sides.send_message)
    if mine == root:
        layouts = _Layouts(sides.recv_blocks)
    messages = Messages(size)
    if engine.have_streams(stream_signature(COLLECTIVE_GATHER, root)) == USE_MPI:
        return engine.through_mpi(
            "gather", partial(nonblocking(method), comm, sendbuf, recvbuf, root), root=root)
    if mine != root:
        messages.send(root, sides.send_message.message.address,
                      sides.send_message.message.nbytes, runs_of(typemap))
        engine.exchange(COLLECTIVE_GATHER, root, messages, sides.send_message.message.nbytes)
        return
    for rank in range(size):
        if rank != root:
            layouts.receive(messages, rank)
    if not sides.send_in_place:
        messages.keeps_own = True
        start_convertor(&messages.own, sides.send_message.message.address, runs_of(typemap),
                        sides.send_message.message.nbytes)
        layouts.place(&messages.own_place, mine)
    check_truncated(engine.exchange(COLLECTIVE_GATHER, root, messages, layouts.blocks.total))


cdef scatter(comm, rooted_parser parse_sides, sendbuf, recvbuf, int root, str method):
    cdef Engine engine = engine_of(comm)
    cdef Sides sides
    cdef _Layouts layouts = None
    cdef Messages messages
    cdef Typemap typemap = None
    cdef int rank, mine, size
    if engine is None:
        count_fallback(comm, "scatter")
        return getattr(MPI.Comm, method)(comm, sendbuf, recvbuf, root)
    mine, size = engine.rank, engine.size
    sides = parse_sides(sendbuf, recvbuf, root, mine, size)
    check_root(engine, root)
    if not sides.recv_in_place:
        typemap = layout_of(sides.recv_message)
    if mine == root:
        layouts = _Layouts(sides.send_blocks)
    messages = Messages(size)
    if engine.have_streams(stream_signature(COLLECTIVE_SCATTER, root)) == USE_MPI:
        return engine.through_mpi(
            "scatter", partial(nonblocking(method), comm, sendbuf, recvbuf, root), root=root)
    # What is sent only the root knows: the choice may not depend on it.
    if engine.plans.choose(COLLECTIVE_SCATTER, 0).algorithm == SCATTER_TWO_STAGE:
        return scatter_in_two_stages(engine, sides, layouts, typemap, messages, root)
    if mine != root:
        messages.receive(root, sides.recv_message.message.address,
                         sides.recv_message.message.nbytes, runs_of(typemap))
        check_truncated(engine.exchange(COLLECTIVE_SCATTER, root, messages,
                                        sides.recv_message.message.nbytes))
        return
    for rank in range(size):
        if rank != root:
            layouts.send(messages, rank)
    if not sides.recv_in_place:
        messages.keeps_own = True
        layouts.place(&messages.own, mine)
        start_convertor(&messages.own_place, sides.recv_message.message.address, runs_of(typemap),
                        sides.recv_message.message.nbytes)
    check_truncated(engine.exchange(COLLECTIVE_SCATTER, root, messages, layouts.blocks.total))


cdef scatter_in_two_stages(Engine engine, Sides sides, _Layouts layouts, Typemap typemap,
                           Messages messages, int root):
    """LHS 2.6: to a leader of each domain all blocks of its domain at once, and on from there.

    Such a message begins with the lengths of its blocks. Ranks of the root's own domain get theirs
    from the root itself, in the first stage.
    """
    cdef const DomainView *view = &engine.domains.view
    cdef int mine = engine.rank, domain = view.domain_of[mine]
    cdef int leader = leader_of(view, view.domain[domain], root)
    cdef int truncated
    cdef size_t nbytes = layouts.blocks.total if mine == root else 0
    cdef list packed = []
    cdef Messages second = Messages(view.ranks), stage
    cdef Convertor place
    if mine == root:
        send_to_leaders(view, layouts, messages, root, packed)
    else:
        nbytes = sides.recv_message.message.nbytes
        if leader == mine:
            # A leader's message has no place in the user's memory, even if it would fit.
            messages.receive_any_length(root)
        else:
            stage = messages if leader == root else second
            stage.receive(leader, sides.recv_message.message.address, nbytes, runs_of(typemap))
    truncated = engine.exchange(COLLECTIVE_SCATTER, root, messages, nbytes, SCATTER_TWO_STAGE)
    if mine == root:
        truncated += keep_own(sides, layouts, typemap, mine)
    elif leader == mine:
        check_packed(engine, messages.grown[root], members_of(view, domain).count)
        start_convertor(&place, sides.recv_message.message.address, runs_of(typemap), nbytes)
        pass_on(members_of(view, domain), mine, messages.grown[root], second, &place, &truncated)
    truncated += engine.exchange(COLLECTIVE_SCATTER, root, second, nbytes, SCATTER_TWO_STAGE, True)
    check_truncated(truncated)


cdef int keep_own(Sides sides, _Layouts layouts, Typemap typemap, int root):
    """The root's own block of a Scatter; 1 where it was truncated."""
    cdef Convertor own, place
    if sides.recv_in_place:
        return 0
    layouts.place(&own, root)
    start_convertor(&place, sides.recv_message.message.address, runs_of(typemap),
                    sides.recv_message.message.nbytes)
    return copy_own(&own, &place)


cdef send_to_leaders(const DomainView *view, _Layouts layouts, Messages messages, int root,
                     list packed):
    """The root's messages, to the leaders and to its own domain. ``packed`` keeps what is sent."""
    cdef Holders members
    cdef bytes text
    cdef int domain, i, rank
    for domain in range(view.domains):
        members = members_of(view, domain)
        if domain != view.domain_of[root]:
            text = pack_blocks(layouts, members)
            packed.append(text)
            messages.send_bytes(members.rank[0], text)
            continue
        for i in range(members.count):
            rank = members.rank[i]
            if rank != root:
                layouts.send(messages, rank)


cdef check_packed(Engine engine, bytes text, int blocks):
    """Nothing that came through shared memory is trusted for addresses (protocol rule 10)."""
    cdef const size_t *lengths = <const size_t *> <char *> text
    cdef size_t left = len(text)
    cdef bint fits = left >= <size_t> (8 * blocks)
    cdef int i
    if fits:
        left -= 8 * blocks
        for i in range(blocks):
            fits = fits and lengths[i] <= left
            left -= lengths[i] if fits else 0
    if not fits or left != 0:
        engine.abandon()
        raise Error("what came for this rank's domain is damaged")


cdef pass_on(Holders members, int mine, bytes text, Messages messages, Convertor *place,
             int *truncated):
    """A leader's messages to its domain; its own block goes to ``place``."""
    cdef const size_t *lengths = <const size_t *> <char *> text
    cdef char *block = <char *> text + 8 * members.count
    cdef Convertor own
    cdef int i
    for i in range(members.count):
        if members.rank[i] == mine:
            start_convertor(&own, block, NULL, lengths[i])
            truncated[0] += copy_own(&own, place)
        else:
            messages.send(members.rank[i], block, lengths[i], NULL)
        block += lengths[i]


cdef bytes pack_blocks(_Layouts layouts, Holders members):
    """The lengths of these ranks' blocks, then the blocks."""
    cdef size_t nbytes = 8 * members.count
    cdef Convertor convertor
    cdef bytes text
    cdef char *at
    cdef int i
    for i in range(members.count):
        nbytes += layouts.blocks.block[members.rank[i]].nbytes
    text = PyBytes_FromStringAndSize(NULL, nbytes)
    at = <char *> text + 8 * members.count
    for i in range(members.count):
        nbytes = layouts.blocks.block[members.rank[i]].nbytes
        (<size_t *> <char *> text)[i] = nbytes
        layouts.place(&convertor, members.rank[i])
        pack_next(&convertor, at, nbytes)
        at += nbytes
    return text


cdef alltoall(comm, parser parse_sides, sendbuf, recvbuf, str method):
    cdef Engine engine = engine_of(comm)
    cdef Sides sides
    cdef _Layouts send, recv
    cdef Messages messages
    cdef Transfer *message
    cdef int i, mine, size
    if engine is None:
        count_fallback(comm, "alltoall")
        return getattr(MPI.Comm, method)(comm, sendbuf, recvbuf)
    mine, size = engine.rank, engine.size
    sides = parse_sides(sendbuf, recvbuf, mine, size)
    recv = _Layouts(sides.recv_blocks)
    send = recv if sides.send_in_place else _Layouts(sides.send_blocks)
    if not sides.send_in_place:
        check_aliases(send.blocks, recv.blocks)
    messages = Messages(size)
    if engine.have_streams(stream_signature(COLLECTIVE_ALLTOALL, 0)) == USE_MPI:
        return engine.through_mpi("alltoall", partial(nonblocking(method), comm, sendbuf, recvbuf))
    for i in range(size - 1):
        # The next rank first: so that not all ranks write to the same one first.
        send.send(messages, (mine + 1 + i) % size)
    for i in range(size - 1):
        message = recv.receive(messages, (mine + size - 1 - i) % size)
        if sides.send_in_place:
            message.behind = &messages.outgoing[size - 2 - i]
    if not sides.send_in_place:
        messages.keeps_own = True
        send.place(&messages.own, mine)
        recv.place(&messages.own_place, mine)
    check_truncated(engine.exchange(COLLECTIVE_ALLTOALL, 0, messages,
                                    send.blocks.total + recv.blocks.total))


cdef allgather(comm, parser parse_sides, sendbuf, recvbuf, str method):
    cdef Engine engine = engine_of(comm)
    cdef Sides sides
    cdef _Layouts recv
    cdef Typemap typemap = None
    cdef Gathered gathered
    cdef int rank, mine, size
    if engine is None:
        count_fallback(comm, "allgather")
        return getattr(MPI.Comm, method)(comm, sendbuf, recvbuf)
    mine, size = engine.rank, engine.size
    sides = parse_sides(sendbuf, recvbuf, mine, size)
    recv = _Layouts(sides.recv_blocks)
    gathered = Gathered(size)
    for rank in range(size):
        gathered.room(rank, recv.blocks.block[rank].address, recv.blocks.block[rank].nbytes,
                      recv.runs(rank))
    if sides.send_in_place:
        gathered.contribute(recv.blocks.block[mine].address, recv.blocks.block[mine].nbytes,
                            recv.runs(mine))
    else:
        typemap = layout_of(sides.send_message)
        gathered.contribute(sides.send_message.message.address,
                            sides.send_message.message.nbytes, runs_of(typemap))
        gathered.all.in_place = False
    if engine.allgather_(
            &gathered.all, COLLECTIVE_ALLGATHER,
            engine.plans.choose(COLLECTIVE_ALLGATHER, gathered.all.longest)) == USE_MPI:
        return engine.through_mpi("allgather", partial(nonblocking(method), comm, sendbuf, recvbuf),
                                  nbytes=gathered.all.longest)
    check_truncated(gathered.all.truncated)


cdef list gather_counts(comm, Engine engine, int64_t mine):
    """Every rank's number, on every rank: a short Allgather."""
    cdef Gathered gathered = Gathered(engine.size)
    cdef int rank
    cdef bytearray numbers = bytearray(8 * engine.size)
    cdef int64_t *all_numbers = <int64_t *> <char *> numbers
    for rank in range(engine.size):
        gathered.room(rank, <char *> &all_numbers[rank], 8, NULL)
    gathered.contribute(<char *> &mine, 8, NULL)
    all_numbers[engine.rank] = mine
    if engine.allgather_(&gathered.all, COLLECTIVE_ALLGATHER,
                         engine.plans.choose(COLLECTIVE_ALLGATHER, 8)) == USE_MPI:
        # Over several nodes only, as for objects.
        count_fallback(comm, "allgather")
        return MPI.Comm.allgather(comm, mine)
    return [all_numbers[rank] for rank in range(engine.size)]
