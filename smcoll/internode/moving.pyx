"""Bcast and Allgather of communicators over several nodes."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from smcoll.buffers.messages cimport Gathered, Messages
from smcoll.coll.allgather cimport Gathering
from smcoll.coll.streams cimport Transfer
from smcoll.coll.truncation cimport NOBODY, fitting
from smcoll.datatype.convertor cimport Convertor, pack_next, start_convertor, unpack_next
from smcoll.internode.network cimport Network, Parcel
from smcoll.internode.span cimport Span

cdef enum:
    AHEAD = 8                  # sections whose messages are posted ahead of the one in work
    TABLE = 0                  # places of the scratch memory


# ---------------------------------------------------------------------- Bcast

cdef bint is_chained(Span span, size_t nbytes) except -1:
    """Whether a vector has so many sections that nodes pass it along a chain."""
    cdef size_t section = span.section(1)
    return (nbytes + section - 1) // section >= <size_t> span.nodes > 2


cdef int bcast(Span span, char *buffer, size_t nbytes, int root) except -1:
    """One copy for each node over the network, from leader to leader; the leaders broadcast it.

    In a binomial tree, or, where a vector has as many sections as there are nodes, along a chain,
    so that no leader sends anything twice.
    """
    cdef Network network = span.network
    cdef size_t section = span.section(1), begin, length
    cdef size_t sections = max((nbytes + section - 1) // section, <size_t> 1), k, j = 0
    cdef int local_leader = span.local_leader(root)
    cdef list sent = [], expected = [], children = []
    parent = None
    if span.local == local_leader:
        parent, children = span.tree(span.node_of[root], is_chained(span, nbytes), False)
    for k in range(sections):
        if parent is not None:
            while j < sections and j < k + AHEAD:
                expected.append(network.receive(span.leader(parent, root), buffer + j * section,
                                                min(section, nbytes - j * section)))
                j += 1
            network.complete([expected.pop(0)])
        begin = k * section
        length = min(section, nbytes - begin)
        if len(sent) >= AHEAD * max(len(children), 1):
            network.complete([sent.pop(0) for _ in children])
        for child in children:
            sent.append(network.send(span.leader(child, root), buffer + begin, length))
        span.bcast(buffer + begin, length, local_leader)
    network.complete(sent)
    return 0


# ---------------------------------------------------------------------- Allgather

cdef bint is_bundled(Span span, size_t longest) except -1:
    """Whether blocks are so short that a node's travel in one message."""
    return longest <= span.bundle_size


cdef uint64_t counts_hash(const Gathering *blocks, int size) noexcept:
    """20 bits by which ranks that disagree about the blocks' lengths differ; 0: all are as long.

    FNV-1a.
    """
    cdef uint64_t number = 0xcbf29ce484222325
    cdef bint even = True
    cdef int rank
    for rank in range(size):
        even = even and blocks.block[rank] == blocks.block[0]
        number = (number ^ blocks.block[rank]) * <uint64_t> 0x100000001b3
    return 0 if even else (number ^ number >> 24 ^ number >> 48) & 0xfffff or 1


cdef int allgather(Span span, Gathering *blocks) except -1:
    if is_bundled(span, blocks.longest):
        return allgather_bundled(span, blocks)
    return allgather_paired(span, blocks)


cdef int allgather_bundled(Span span, Gathering *blocks) except -1:
    """A node's blocks are gathered by its leader, exchanged between leaders, and broadcast.

    They travel in a table of fixed form, since the lengths of blocks are agreed: for each node, the
    length that each of its ranks really sent, then the blocks.
    """
    cdef Network network = span.network
    cdef size_t total = 0, length
    cdef size_t *lengths = <size_t *> malloc(3 * span.size * sizeof(size_t))
    cdef size_t *places = lengths + span.size
    cdef size_t *begin = lengths + 2 * span.size
    cdef int node, rank, i
    cdef char *table
    cdef list parcels = []
    if lengths == NULL:
        raise MemoryError
    try:
        for node in range(span.nodes):
            begin[node] = total
            for rank in span.members[node]:
                lengths[rank] = total
                total += sizeof(uint64_t)
            for rank in span.members[node]:
                places[rank] = total
                total += blocks.block[rank]
        table = span.scratch(TABLE, total + 1)
        gather_at_leader(span, blocks, table, lengths, places)
        if span.local == 0:
            for node in range(span.nodes):
                if node != span.mine:
                    parcels.append(network.receive(
                        span.members[node][0], table + begin[node],
                        (begin[node + 1] if node + 1 < span.nodes else total) - begin[node]))
            length = (begin[span.mine + 1] if span.mine + 1 < span.nodes else total
                      ) - begin[span.mine]
            for i in range(1, span.nodes):
                node = (span.mine + i) % span.nodes
                parcels.append(network.send(span.members[node][0], table + begin[span.mine],
                                            length))
            network.complete(parcels)
        span.bcast(table, total, 0)
        for rank in range(span.size):
            if rank == span.rank and blocks.in_place:
                continue
            memcpy(&length, table + lengths[rank], sizeof(uint64_t))
            unpack_next(&blocks.recv[rank], table + places[rank],
                        fitting(&blocks.truncation, rank, length, blocks.block[rank]))
    finally:
        free(lengths)
    return 0


cdef int gather_at_leader(Span span, Gathering *blocks, char *table, const size_t *lengths,
                          const size_t *places) except -1:
    """The blocks of this node's ranks, and their lengths, in the leader's table."""
    cdef Messages messages = Messages(span.locals)
    cdef Transfer *message
    cdef int i, rank
    cdef uint64_t length = blocks.send_bytes
    if span.local != 0:
        message = messages.send(0, NULL, length, NULL)
        message.convertor = blocks.send
        return span.exchange(messages)
    for i in range(1, span.locals):
        rank = span.members[span.mine][i]
        messages.receive(i, table + places[rank], blocks.block[rank], NULL)
    span.exchange(messages)
    for i in range(messages.receives):
        rank = span.members[span.mine][messages.incoming[i].peer]
        memcpy(table + lengths[rank], &messages.incoming[i].nbytes, sizeof(uint64_t))
    memcpy(table + lengths[span.rank], &length, sizeof(uint64_t))
    pack_next(&blocks.send, table + places[span.rank],
              min(blocks.send_bytes, blocks.block[span.rank]))
    return 0


cdef int allgather_paired(Span span, Gathering *blocks) except -1:
    """Every rank sends its block to one rank of each other node, which posts it there.

    So all ranks of a node use the network, and what arrives is read by the node's ranks where it
    was posted. In round 0 a node gathers its own blocks, in each further one a block for each
    rank, while the others are on their way.
    """
    cdef Network network = span.network
    cdef int node, rank, round_, rounds = 0, local
    cdef size_t nbytes = blocks.send_bytes
    cdef list sent = [], arriving = [], assigned = [[] for _ in range(span.locals)]
    cdef char *own = blocks.send.address
    cdef char *place
    cdef bytes packed = None
    # Which blocks of other nodes each rank of this one posts.
    for rank in range(span.size):
        if <int> span.node_of[rank] != span.mine:
            local = <int> span.local_of[rank] % span.locals
            assigned[local].append(rank)
            rounds = max(rounds, len(assigned[local]))
    for rank in assigned[span.local]:
        memory = bytearray(blocks.longest)
        place = memory
        arriving.append((network.receive(rank, place, blocks.block[rank], memory), memory))
    if blocks.send.runs != NULL:
        packed = pack(&blocks.send, nbytes)
        own = packed
    for node in range(span.nodes):
        if node != span.mine:
            sent.append(network.send(span.placement.counterpart(span.rank, node), own, nbytes,
                                     packed))
    for round_ in range(rounds + 1):
        gather_round(span, blocks, round_, assigned, arriving, own, nbytes)
    network.complete(sent)
    return 0


cdef bytes pack(Convertor *source, size_t nbytes):
    """A message without the holes of its datatype; the convertor stands at its start again."""
    cdef bytes memory = bytes(nbytes)
    pack_next(source, <char *> memory, nbytes)
    start_convertor(source, source.address, source.runs, source.nbytes)
    return memory


cdef int gather_round(Span span, Gathering *blocks, int round_, list assigned, list arriving,
                      char *own, size_t nbytes) except -1:
    """An Allgather in the node: of its own blocks first, then of one that each rank received."""
    cdef Gathered gathered = Gathered(span.locals)
    cdef Parcel parcel
    cdef int local, rank
    cdef char *place
    for local in range(span.locals):
        if round_ == 0:
            rank = span.members[span.mine][local]
        elif round_ <= len(assigned[local]):
            rank = assigned[local][round_ - 1]
        else:
            gathered.room(local, NULL, 0, NULL)
            continue
        gathered.room(local, NULL, blocks.block[rank], NULL)
        gathered.convertors[local] = blocks.recv[rank]
    gathered.contribute(NULL, 0, NULL)
    gathered.all.in_place = False
    if round_ == 0:
        gathered.contribute(own, nbytes, NULL)
        gathered.all.in_place = blocks.in_place
    elif round_ <= len(arriving):
        parcel, memory = arriving[round_ - 1]
        span.network.complete([parcel])
        place = memory
        gathered.contribute(place, parcel.nbytes, NULL)
    span.allgather(&gathered.all)
    if gathered.all.truncation.sender != NOBODY:
        local = gathered.all.truncation.sender
        blocks.truncation = gathered.all.truncation
        blocks.truncation.sender = (span.members[span.mine][local] if round_ == 0
                                    else assigned[local][round_ - 1])
    return 0
