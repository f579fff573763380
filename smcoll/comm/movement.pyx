"""Bcast, Gather(v), Scatter(v), Allgather(v) and Alltoall(v, w) of a communicator.

A method first tries the common case, contiguous numpy arrays of a plain type, with as few Python
objects as it can. Everything else is parsed in full.

Where a datatype has holes, its bytes are gathered and laid out a chunk at a time on their way
through shared memory: the layout is a local property and may not select another path.
"""

from functools import partial

from cpython.bytes cimport PyBytes_FromStringAndSize
from mpi4py import MPI

from libc.stdint cimport int64_t

from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLTOALL, COLLECTIVE_BCAST, COLLECTIVE_GATHER,
    COLLECTIVE_SCATTER,
)
from smcoll.buffers.blocks cimport (
    Blocks, Sides, allgather_sides, alltoall_sides, blocks_parser, check_message, parse_blocks,
    parse_vector, parse_vector_w, plain_blocks, rooted_sides,
)
from smcoll.buffers.buffers cimport Message, Specification, in_place, parse, plain_array
from smcoll.buffers.messages cimport Gathered, Messages
from smcoll.coll.streams cimport Transfer
from smcoll.coll.truncation cimport NOBODY, Truncation, fitting
from smcoll.comm.state cimport check_root, engine_of, count_fallback
from smcoll.datatype.convertor cimport (
    Convertor, copy_message, pack_next, start_convertor, unpack_next,
)
from smcoll.engine.engine cimport Engine, stream_signature
from smcoll.engine.reservation cimport CARRIED_OUT, USE_MPI
from smcoll.sync.domains cimport DomainView, Holders, leader_of, members_of

from smcoll.algorithms import ALGORITHMS
from smcoll.errors import Error, TruncationError

cdef int SCATTER_TWO_STAGE = ALGORITHMS["scatter"].index("two_stage")


class Movement:
    """The methods that move data; mixed into mpi4py's communicator classes."""

    __slots__ = ()

    def Bcast(self, buf, int root=0):
        """Broadcast ``buf`` from ``root`` (GS 3.3: a fan-out tree, ``coll/tree.pyx``).

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
            # The plan: the table's row for so many bytes (tuning.select), or what was learned.
            if engine.bcast_(COLLECTIVE_BCAST, message.address, message.nbytes, root,
                             engine.plans.choose(COLLECTIVE_BCAST, message.nbytes),
                             True) == CARRIED_OUT:
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
        rooted(self, COLLECTIVE_GATHER, parse_blocks, sendbuf, recvbuf, root, "Gather")

    def Gatherv(self, sendbuf, recvbuf, int root=0):
        """Gather blocks of any lengths at ``root``."""
        rooted(self, COLLECTIVE_GATHER, parse_vector, sendbuf, recvbuf, root, "Gatherv")

    def Scatter(self, sendbuf, recvbuf, int root=0):
        """Scatter equal blocks from ``root``."""
        rooted(self, COLLECTIVE_SCATTER, parse_blocks, sendbuf, recvbuf, root, "Scatter")

    def Scatterv(self, sendbuf, recvbuf, int root=0):
        """Scatter blocks of any lengths from ``root``."""
        rooted(self, COLLECTIVE_SCATTER, parse_vector, sendbuf, recvbuf, root, "Scatterv")

    def Allgather(self, sendbuf, recvbuf):
        """Gather equal blocks at all ranks: each is posted once and read by everybody."""
        allgather(self, parse_blocks, sendbuf, recvbuf, "Allgather")

    def Allgatherv(self, sendbuf, recvbuf):
        """Gather blocks of any lengths at all ranks."""
        allgather(self, parse_vector, sendbuf, recvbuf, "Allgatherv")

    def Alltoall(self, sendbuf, recvbuf):
        """Every rank sends a block of equal length to every rank."""
        alltoall(self, parse_blocks, sendbuf, recvbuf, "Alltoall")

    def Alltoallv(self, sendbuf, recvbuf):
        """Every rank sends a block of any length to every rank."""
        alltoall(self, parse_vector, sendbuf, recvbuf, "Alltoallv")

    def Alltoallw(self, sendbuf, recvbuf):
        """The same with a datatype for each pair of ranks."""
        alltoall(self, parse_vector_w, sendbuf, recvbuf, "Alltoallw")


# ---------------------------------------------------------------------- checks

cdef void copy_own(Convertor *source, Convertor *target, int root, Truncation *truncation) noexcept:
    """The block of the rank that has it already."""
    copy_message(source, target, fitting(truncation, root, source.nbytes, target.nbytes))


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


cdef check_truncated(const Truncation *truncation):
    if truncation.sender != NOBODY:
        raise TruncationError(f"rank {truncation.sender} sent {truncation.nbytes} bytes; this rank "
                              f"has room for {truncation.room}")


# ---------------------------------------------------------------------- the collectives

# Methods of MPI's own are looked up by name where they are needed: a closure or two attributes a
# call cost as much as all of a short call's arguments.
cdef nonblocking(str method):
    return getattr(MPI.Comm, f"I{method.lower()}")


cdef int broadcast(Engine engine, Specification spec, int root) except -1:
    cdef Message message = spec.message
    spec.lay_out()
    if spec.runs() == NULL:
        return engine.bcast_(COLLECTIVE_BCAST, message.address, message.nbytes, root,
                             engine.plans.choose(COLLECTIVE_BCAST, message.nbytes), True)
    # Packed bytes go the way that contiguous ones would.
    cdef Convertor convertor
    cdef bytearray packed = bytearray(max(message.nbytes, <size_t> 1))
    spec.place(&convertor)
    if engine.rank == root:
        pack_next(&convertor, packed, message.nbytes)
    cdef int path = engine.bcast_(COLLECTIVE_BCAST, packed, message.nbytes, root,
                                  engine.plans.choose(COLLECTIVE_BCAST, message.nbytes), True)
    if path == CARRIED_OUT and engine.rank != root:
        unpack_next(&convertor, packed, message.nbytes)
    return path


cdef rooted(comm, int collective, blocks_parser parse_side, sendbuf, recvbuf, int root, str method):
    """Gather(v) and Scatter(v): the root has a block for each rank, every rank a message."""
    cdef Engine engine = engine_of(comm)
    cdef bint scatters = collective == COLLECTIVE_SCATTER
    cdef str name = "scatter" if scatters else "gather"
    cdef Sides sides
    cdef int path = NOT_PLAIN
    if engine is None:
        count_fallback(comm, name)
        return getattr(MPI.Comm, method)(comm, sendbuf, recvbuf, root)
    blocks, message = (sendbuf, recvbuf) if scatters else (recvbuf, sendbuf)
    if parse_side == parse_blocks:
        path = move_plain_rooted(engine, collective, blocks, message, root)
    if path == NOT_PLAIN:
        sides = rooted_sides(parse_side, blocks, message, scatters, root, engine.rank, engine.size)
        check_root(engine, root)
        sides.lay_out()
        path = move_rooted(engine, collective, sides, root)
    if path == USE_MPI:
        engine.through_mpi(name, partial(nonblocking(method), comm, sendbuf, recvbuf, root),
                           root=root)


cdef int move_plain_rooted(Engine engine, int collective, blocks, message, int root) except -1:
    """As ``move_rooted``, between plain arrays; NOT_PLAIN where a side is something else."""
    cdef bint scatters = collective == COLLECTIVE_SCATTER, at_root = engine.rank == root
    cdef bint keeps_own = at_root and not in_place(message)
    cdef Message block, one
    cdef Messages messages
    cdef int rank
    if (scatters and is_in_two_stages(engine) or not 0 <= root < engine.size
            or at_root and not plain_blocks(blocks, not scatters, engine.size, &block)
            or (keeps_own or not at_root) and not plain_array(message, scatters, &one)):
        return NOT_PLAIN
    messages = Messages(engine.size)
    if engine.have_streams(stream_signature(collective, root)) == USE_MPI:
        return USE_MPI
    if not at_root:
        add_message(messages, scatters, root, &one)
        engine.exchange(collective, root, messages, one.nbytes)
        check_truncated(&messages.truncation)
        return CARRIED_OUT
    for rank in range(engine.size):
        if rank != root:
            add_message(messages, not scatters, rank, &block)
        elif keeps_own and scatters:
            messages.keep(block.address, block.nbytes, one.address, one.nbytes)
        elif keeps_own:
            messages.keep(one.address, one.nbytes, block.address, block.nbytes)
        block.address += block.nbytes
    engine.exchange(collective, root, messages, block.nbytes * <size_t> engine.size)
    check_truncated(&messages.truncation)
    return CARRIED_OUT


cdef void add_message(Messages messages, bint receives, int peer,
                      const Message *message) noexcept:
    if receives:
        messages.receive(peer, message.address, message.nbytes, NULL)
    else:
        messages.send(peer, message.address, message.nbytes, NULL)


# What is sent only the root knows: the choice may not depend on it.
cdef bint is_in_two_stages(Engine engine):
    return engine.plans.choose(COLLECTIVE_SCATTER, 0).algorithm == SCATTER_TWO_STAGE


cdef int move_rooted(Engine engine, int collective, Sides sides, int root) except -1:
    """A Gather or Scatter between parsed sides: CARRIED_OUT, or USE_MPI where all agree on that."""
    cdef bint scatters = collective == COLLECTIVE_SCATTER
    cdef Messages messages = Messages(engine.size)
    cdef size_t nbytes
    cdef int rank, mine = engine.rank
    if engine.have_streams(stream_signature(collective, root)) == USE_MPI:
        return USE_MPI
    if scatters and is_in_two_stages(engine):
        scatter_in_two_stages(engine, sides, messages, root)
        return CARRIED_OUT
    if mine == root:
        nbytes = sides.blocks.total
        for rank in range(engine.size):
            if rank != root and scatters:
                sides.blocks.send(messages, rank)
            elif rank != root:
                sides.blocks.receive(messages, rank)
        if not sides.in_place:
            messages.keeps_own = True
            sides.blocks.place(&messages.own if scatters else &messages.own_place, mine)
            sides.message.place(&messages.own_place if scatters else &messages.own)
    else:
        nbytes = sides.message.message.nbytes
        if scatters:
            messages.receive(root, sides.message.message.address, nbytes, sides.message.runs())
        else:
            messages.send(root, sides.message.message.address, nbytes, sides.message.runs())
    engine.exchange(collective, root, messages, nbytes)
    check_truncated(&messages.truncation)
    return CARRIED_OUT


cdef scatter_in_two_stages(Engine engine, Sides sides, Messages messages, int root):
    """LHS 2.6: to a leader of each domain all blocks of its domain at once, and on from there.

    Such a message begins with the lengths of its blocks. Ranks of the root's own domain get theirs
    from the root itself, in the first stage.
    """
    cdef const DomainView *view = &engine.domains.view
    cdef int mine = engine.rank, domain = view.domain_of[mine]
    cdef int leader = leader_of(view, view.domain[domain], root)
    cdef size_t nbytes = sides.blocks.total if mine == root else sides.message.message.nbytes
    cdef list packed = []
    cdef Messages second = Messages(view.ranks), stage
    cdef Convertor place
    if mine == root:
        send_to_leaders(view, sides.blocks, messages, root, packed)
    elif mine == leader:
        # A leader's message has no place in the user's memory, even if it would fit.
        messages.receive_any_length(root)
    else:
        stage = messages if leader == root else second
        stage.receive(leader, sides.message.message.address, nbytes, sides.message.runs())
    engine.exchange(COLLECTIVE_SCATTER, root, messages, nbytes, SCATTER_TWO_STAGE)
    second.truncation = messages.truncation
    if mine == root:
        keep_own(sides, mine, &second.truncation)
    elif leader == mine:
        check_packed(engine, messages.grown[root], members_of(view, domain).count)
        sides.message.place(&place)
        pass_on(members_of(view, domain), mine, messages.grown[root], second, &place, root)
    engine.exchange(COLLECTIVE_SCATTER, root, second, nbytes, SCATTER_TWO_STAGE, True)
    if second.truncation.sender == leader:
        second.truncation.sender = root        # whose block it passes on
    check_truncated(&second.truncation)


cdef keep_own(Sides sides, int root, Truncation *truncation):
    """The root's own block of a Scatter."""
    cdef Convertor own, place
    if not sides.in_place:
        sides.blocks.place(&own, root)
        sides.message.place(&place)
        copy_own(&own, &place, root, truncation)


cdef send_to_leaders(const DomainView *view, Blocks blocks, Messages messages, int root,
                     list packed):
    """The root's messages, to the leaders and to its own domain. ``packed`` keeps what is sent."""
    cdef Holders members
    cdef bytes text
    cdef int domain, i, rank
    for domain in range(view.domains):
        members = members_of(view, domain)
        if domain != view.domain_of[root]:
            text = pack_blocks(blocks, members)
            packed.append(text)
            messages.send_bytes(members.rank[0], text)
            continue
        for i in range(members.count):
            rank = members.rank[i]
            if rank != root:
                blocks.send(messages, rank)


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
             int root):
    """A leader's messages to its domain; its own block goes to ``place``."""
    cdef const size_t *lengths = <const size_t *> <char *> text
    cdef char *block = <char *> text + 8 * members.count
    cdef Convertor own
    cdef int i
    for i in range(members.count):
        if members.rank[i] == mine:
            start_convertor(&own, block, NULL, lengths[i])
            copy_own(&own, place, root, &messages.truncation)
        else:
            messages.send(members.rank[i], block, lengths[i], NULL)
        block += lengths[i]


cdef bytes pack_blocks(Blocks blocks, Holders members):
    """The lengths of these ranks' blocks, then the blocks."""
    cdef size_t nbytes = 8 * members.count
    cdef Convertor convertor
    cdef bytes text
    cdef char *at
    cdef int i
    for i in range(members.count):
        nbytes += blocks.block[members.rank[i]].nbytes
    text = PyBytes_FromStringAndSize(NULL, nbytes)
    at = <char *> text + 8 * members.count
    for i in range(members.count):
        nbytes = blocks.block[members.rank[i]].nbytes
        (<size_t *> <char *> text)[i] = nbytes
        blocks.place(&convertor, members.rank[i])
        pack_next(&convertor, at, nbytes)
        at += nbytes
    return text


cdef alltoall(comm, blocks_parser parse_side, sendbuf, recvbuf, str method):
    cdef Engine engine = engine_of(comm)
    cdef Sides sides
    cdef int path = NOT_PLAIN
    if engine is None:
        count_fallback(comm, "alltoall")
        return getattr(MPI.Comm, method)(comm, sendbuf, recvbuf)
    if parse_side == parse_blocks:
        path = move_plain_to_all(engine, sendbuf, recvbuf)
    if path == NOT_PLAIN:
        sides = alltoall_sides(parse_side, sendbuf, recvbuf, engine.size)
        sides.lay_out()
        if not sides.in_place:
            check_aliases(sides.sent, sides.blocks)
        path = move_to_all(engine, sides)
    if path == USE_MPI:
        engine.through_mpi("alltoall", partial(nonblocking(method), comm, sendbuf, recvbuf))


cdef int move_plain_to_all(Engine engine, sendbuf, recvbuf) except -1:
    """As ``move_to_all``, between plain arrays; NOT_PLAIN where a side is something else."""
    cdef Message send, recv, at
    cdef Messages messages
    cdef int i, mine = engine.rank, size = engine.size
    if (not plain_blocks(recvbuf, True, size, &recv)
            or not plain_blocks(sendbuf, False, size, &send)
            or send.address == recv.address or send.nbytes != recv.nbytes):
        return NOT_PLAIN
    messages = Messages(size)
    if engine.have_streams(stream_signature(COLLECTIVE_ALLTOALL, 0)) == USE_MPI:
        return USE_MPI
    for i in range(1, size):
        # The next rank first: so that not all ranks write to the same one first.
        at = block_at(&send, (mine + i) % size)
        add_message(messages, False, (mine + i) % size, &at)
        at = block_at(&recv, (mine + size - i) % size)
        add_message(messages, True, (mine + size - i) % size, &at)
    messages.keep(block_at(&send, mine).address, send.nbytes,
                  block_at(&recv, mine).address, recv.nbytes)
    engine.exchange(COLLECTIVE_ALLTOALL, 0, messages, (send.nbytes + recv.nbytes) * <size_t> size)
    check_truncated(&messages.truncation)
    return CARRIED_OUT


cdef inline Message block_at(const Message *first, int rank) noexcept:
    cdef Message block = first[0]
    block.address += first.nbytes * <size_t> rank
    return block


cdef int move_to_all(Engine engine, Sides sides) except -1:
    """An Alltoall between parsed sides, as ``move_rooted``."""
    cdef Blocks recv = sides.blocks, send = sides.blocks if sides.in_place else sides.sent
    cdef Messages messages = Messages(engine.size)
    cdef Transfer *message
    cdef int i, mine = engine.rank, size = engine.size
    if engine.have_streams(stream_signature(COLLECTIVE_ALLTOALL, 0)) == USE_MPI:
        return USE_MPI
    for i in range(size - 1):
        # The next rank first: so that not all ranks write to the same one first.
        send.send(messages, (mine + 1 + i) % size)
    for i in range(size - 1):
        message = recv.receive(messages, (mine + size - 1 - i) % size)
        if sides.in_place:
            message.behind = &messages.outgoing[size - 2 - i]
    if not sides.in_place:
        messages.keeps_own = True
        send.place(&messages.own, mine)
        recv.place(&messages.own_place, mine)
    engine.exchange(COLLECTIVE_ALLTOALL, 0, messages, send.total + recv.total)
    check_truncated(&messages.truncation)
    return CARRIED_OUT


cdef allgather(comm, blocks_parser parse_side, sendbuf, recvbuf, str method):
    cdef Engine engine = engine_of(comm)
    cdef Sides sides
    cdef Gathered gathered
    if engine is None:
        count_fallback(comm, "allgather")
        return getattr(MPI.Comm, method)(comm, sendbuf, recvbuf)
    gathered = Gathered(engine.size)
    if parse_side != parse_blocks or not gather_plain(gathered, engine, sendbuf, recvbuf):
        sides = allgather_sides(parse_side, sendbuf, recvbuf, engine.rank, engine.size)
        sides.lay_out()
        gather_sides(gathered, engine, sides)
    if engine.allgather_(
            &gathered.all, COLLECTIVE_ALLGATHER,
            engine.plans.choose(COLLECTIVE_ALLGATHER, gathered.all.longest), True) == USE_MPI:
        return engine.through_mpi("allgather", partial(nonblocking(method), comm, sendbuf, recvbuf),
                                  nbytes=gathered.all.longest)
    check_truncated(&gathered.all.truncation)


cdef bint gather_plain(Gathered gathered, Engine engine, sendbuf, recvbuf):
    """What plain arrays say; False where a side is something else."""
    cdef Message send, recv
    cdef bint is_in_place = in_place(sendbuf)
    cdef int rank
    if (not plain_blocks(recvbuf, True, engine.size, &recv)
            or not is_in_place and not plain_array(sendbuf, False, &send)):
        return False
    for rank in range(engine.size):
        gathered.room(rank, block_at(&recv, rank).address, recv.nbytes, NULL)
    if is_in_place:
        send = block_at(&recv, engine.rank)
    gathered.contribute(send.address, send.nbytes, NULL)
    gathered.all.in_place = is_in_place
    return True


cdef gather_sides(Gathered gathered, Engine engine, Sides sides):
    cdef Blocks recv = sides.blocks
    cdef int rank, mine = engine.rank
    for rank in range(engine.size):
        gathered.room(rank, recv.block[rank].address, recv.block[rank].nbytes, recv.runs(rank))
    if sides.in_place:
        gathered.contribute(recv.block[mine].address, recv.block[mine].nbytes, recv.runs(mine))
    else:
        gathered.contribute(sides.message.message.address, sides.message.message.nbytes,
                            sides.message.runs())
        gathered.all.in_place = False


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
                         engine.plans.choose(COLLECTIVE_ALLGATHER, 8), True) == USE_MPI:
        # Over several nodes only, as for objects.
        count_fallback(comm, "allgather")
        return MPI.Comm.allgather(comm, mine)
    return [all_numbers[rank] for rank in range(engine.size)]
