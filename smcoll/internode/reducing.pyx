"""Barrier and the reductions of communicators over several nodes."""

from libc.stdlib cimport free, malloc
from libc.string cimport memset

from smcoll.base.kernels cimport OP_SUM, TYPE_INT8, Operation, copy_bytes
from smcoll.base.signature cimport COLLECTIVE_EXSCAN, COLLECTIVE_SCAN
from smcoll.buffers.messages cimport Gathered, Messages
from smcoll.internode.between cimport allreduce_between
from smcoll.internode.network cimport Network
from smcoll.internode.span cimport Reduction, Span, combine

cdef enum:
    # Sections of a long vector whose messages are posted ahead of the one in work.
    AHEAD = 4
    # PeerBuffers of the scratch memory; `between` has number 1.
    PARTIAL = 0
    FROM_CHILDREN = 2
    PIECES = 3


cdef int barrier(Span span) except -1:
    """Fan-in on each node, an exchange between leaders, fan-out (LHS 2.6)."""
    cdef Reduction nothing
    cdef Operation operation
    memset(&nothing, 0, sizeof(nothing))
    operation.kernel = span.node.kernel_of(OP_SUM, TYPE_INT8)
    nothing.unit = 1
    nothing.internal = True
    nothing.operation = &operation
    cdef char byte = 0
    span.reduce(&nothing, &byte, &byte, 0, 0)
    if span.local == 0:
        allreduce_between(span, &nothing, &byte, 0, span.first_ranks)
    return span.bcast(&byte, 0, 0)


# ---------------------------------------------------------------------- Reduce

cdef int reduce_to_root(Span span, const Reduction *reduction, int root) except -1:
    """Each node reduces to its leader, the leaders along a tree to the root (LHS 2.6).

    A section of a long vector is on its way while the next is reduced in the node. Where operands
    must keep their order, the tree leads to the first node, which passes the result on. The root
    expects it section by section, as it contributes: the first node can't hold all of it back.
    """
    cdef Network network = span.network
    cdef size_t unit = reduction.unit, section = span.section(unit)
    cdef size_t nbytes = reduction.elements * unit, begin, length
    cdef int root_node = span.node_of[root]
    cdef int top = 0 if reduction.ordered else root_node
    cdef int local_leader = span.local_leader(root)
    cdef size_t sections = max((nbytes + section - 1) // section, <size_t> 1), k, j
    cdef bint leads = span.local == local_leader
    cdef char *partial = NULL
    cdef char *place
    cdef char *arrivals = NULL
    cdef list sent = [], expected = [], results = []
    if not leads:
        for k in range(sections):
            begin = k * section
            span.reduce(reduction, reduction.send + begin, NULL,
                        min(section, nbytes - begin) // unit, local_leader)
        return 0
    parent, children = span.tree(top, False, reduction.ordered)
    cdef int fan = len(children), child
    # The result of this node and those below it comes to lie in the root's buffer or here.
    cdef bint at_home = parent is None and span.rank == root
    partial = span.scratch(PARTIAL, AHEAD * section)
    if fan > 0:
        arrivals = span.scratch(FROM_CHILDREN, AHEAD * section * <size_t> fan)
    j = 0
    for k in range(sections):
        while j < sections and j < k + AHEAD and fan > 0:
            length = min(section, nbytes - j * section)
            expected.append([
                network.receive(span.leader(children[child], root),
                                arrivals + ((j % AHEAD) * <size_t> fan + child) * section, length)
                for child in range(fan)])
            j += 1
        if len(sent) == AHEAD:
            network.complete([sent.pop(0)])
        begin = k * section
        length = min(section, nbytes - begin)
        place = reduction.recv + begin if at_home else partial + (k % AHEAD) * section
        span.reduce(reduction, reduction.send + begin, place, length // unit, local_leader)
        if fan > 0:
            network.complete(expected.pop(0))
            for child in range(fan):
                combine(reduction, place, place,
                        arrivals + ((k % AHEAD) * <size_t> fan + child) * section, length // unit)
        if parent is not None:
            sent.append(network.send(span.leader(parent, root), place, length))
        elif not at_home:
            sent.append(network.send(root, place, length))
        if span.rank == root and not at_home:
            if len(results) == AHEAD:
                network.complete([results.pop(0)])
            results.append(network.receive(span.leader(top, root), reduction.recv + begin, length))
    network.complete(sent)
    network.complete(results)
    return 0


# ---------------------------------------------------------------------- Allreduce

cdef int users_of_network(Span span):
    """Ranks of each node that exchange their slices of a long vector at the same time."""
    wanted = span.config.internals.network_ranks or 4
    return min(wanted, span.placement.fewest)


cdef bint is_sliced(Span span, size_t nbytes) except -1:
    """Whether a vector is long enough to be reduced in slices."""
    return nbytes > span.slice_above


cdef int allreduce(Span span, const Reduction *reduction) except -1:
    if not reduction.internal and is_sliced(span, reduction.elements * reduction.unit):
        return allreduce_sliced(span, reduction)
    return allreduce_by_leaders(span, reduction)


cdef int allreduce_by_leaders(Span span, const Reduction *reduction) except -1:
    """Reduce in the node, allreduce between leaders, broadcast in the node (LHS 2.5).

    A rank that does not lead posts its operand and waits once, for the result.
    """
    span.reduce(reduction, reduction.send, reduction.recv, reduction.elements, 0)
    if span.local == 0:
        allreduce_between(span, reduction, reduction.recv, reduction.elements, span.first_ranks)
    return span.bcast(reduction.recv, reduction.elements * reduction.unit, 0)


cdef class _Slice:
    """This rank's slice of one section, on its way between the nodes.

    Two nodes exchange all of it at once. More of them first exchange pieces, so that each reduces
    one, then the reduced pieces: twice the latency, and no byte more than is needed.
    """

    cdef Span span
    cdef const Reduction *reduction
    cdef char *vector
    cdef char *arrivals
    cdef size_t elements
    cdef list peers, parcels

    cdef size_t begin_of(self, int node):
        """First element of a node's piece."""
        return self.elements * <size_t> node // <size_t> self.span.nodes

    cdef size_t nbytes_of(self, int node):
        return (self.begin_of(node + 1) - self.begin_of(node)) * self.reduction.unit

    cdef int start(self) except -1:
        """Send what the others reduce, expect what this rank does."""
        cdef Network network = self.span.network
        cdef size_t unit = self.reduction.unit
        cdef int mine = self.span.mine, node
        cdef size_t room
        self.parcels = []
        if self.span.nodes == 2:
            self.parcels = [
                network.send(self.peers[1 - mine], self.vector, self.elements * unit),
                network.receive(self.peers[1 - mine], self.arrivals, self.elements * unit)]
            return 0
        room = self.nbytes_of(mine)
        for node in range(self.span.nodes):
            if node != mine:
                self.parcels.append(network.receive(
                    self.peers[node], self.arrivals + <size_t> node * room, room))
        for node in range(self.span.nodes):
            if node != mine:
                self.parcels.append(network.send(
                    self.peers[node], self.vector + self.begin_of(node) * unit,
                    self.nbytes_of(node)))
        return 0

    cdef int reduce(self) except -1:
        """Reduce it, in the order of the nodes; with more than two, send the reduced piece."""
        cdef Network network = self.span.network
        cdef size_t unit = self.reduction.unit, room, count
        cdef int mine = self.span.mine, node
        cdef char *own
        cdef char *other
        network.complete(self.parcels)
        self.parcels = []
        if self.span.nodes == 2:
            if mine == 0:
                combine(self.reduction, self.vector, self.vector, self.arrivals, self.elements)
            else:
                combine(self.reduction, self.vector, self.arrivals, self.vector, self.elements)
            return 0
        own = self.vector + self.begin_of(mine) * unit
        room = self.nbytes_of(mine)
        count = room // unit
        # Node by node; the operands before ours are folded in the first one's place.
        other = own
        for node in range(self.span.nodes):
            if node == mine:
                if node > 0:
                    combine(self.reduction, own, other, own, count)
            elif node == 0:
                other = self.arrivals
            elif node < mine:
                combine(self.reduction, other, other, self.arrivals + <size_t> node * room, count)
            else:
                combine(self.reduction, own, own, self.arrivals + <size_t> node * room, count)
        for node in range(self.span.nodes):
            if node != mine:
                self.parcels.append(network.receive(
                    self.peers[node], self.vector + self.begin_of(node) * unit,
                    self.nbytes_of(node)))
        for node in range(self.span.nodes):
            if node != mine:
                self.parcels.append(network.send(self.peers[node], own, room))
        return 0

    cdef int finish(self) except -1:
        """All of it is reduced."""
        self.span.network.complete(self.parcels)
        return 0


cdef class _SlicedSections:
    """How a long vector is cut: sections, each in a slice for every rank that uses the network."""

    cdef Span span
    cdef const Reduction *reduction
    cdef int users
    cdef size_t section, sections
    cdef list slices
    cdef size_t *begin

    def __cinit__(self, Span span):
        self.span = span
        self.begin = <size_t *> malloc((span.locals + 1) * sizeof(size_t))
        if self.begin == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.begin)

    cdef Partition cut(self, size_t k):
        """The slices of section ``k``; ranks that don't use the network have empty ones."""
        cdef Partition blocks
        cdef size_t unit = self.reduction.unit
        cdef size_t elements = self.length(k) // unit
        cdef int local
        blocks.longest = 0
        for local in range(self.span.locals + 1):
            self.begin[local] = (elements * <size_t> min(local, self.users)
                                 // <size_t> self.users * unit)
        for local in range(self.span.locals):
            blocks.longest = max(blocks.longest, self.begin[local + 1] - self.begin[local])
        blocks.begin = self.begin
        blocks.in_place = False
        return blocks

    cdef size_t length(self, size_t k):
        return min(self.section, self.reduction.elements * self.reduction.unit - k * self.section)

    cdef int reduce_in_node(self, size_t k) except -1:
        """Each rank's slice of section ``k``, and the start of its way between the nodes."""
        cdef Partition blocks = self.cut(k)
        cdef const Reduction *reduction = self.reduction
        cdef char *place = reduction.recv + k * self.section + self.begin[self.span.local]
        cdef _Slice part
        self.span.reduce_scatter(reduction, reduction.send + k * self.section, place, &blocks)
        if self.span.local < self.users:
            part = _Slice.__new__(_Slice)
            part.span = self.span
            part.reduction = reduction
            part.vector = place
            part.elements = (self.begin[self.span.local + 1]
                             - self.begin[self.span.local]) // reduction.unit
            part.arrivals = self.span.scratch(
                PIECES + <int> (k % AHEAD),
                (part.elements + <size_t> self.span.nodes) * reduction.unit * 2)
            part.peers = [members[self.span.local] for members in self.span.members]
            part.start()
            self.slices.append(part)
        return 0

    cdef int spread_in_node(self, size_t k) except -1:
        """Every rank gets everybody's slice of section ``k``."""
        cdef Gathered gathered = Gathered(self.span.locals)
        cdef char *place = self.reduction.recv + k * self.section
        cdef int local
        self.cut(k)
        for local in range(self.span.locals):
            gathered.room(local, place + self.begin[local],
                          self.begin[local + 1] - self.begin[local], NULL)
        local = self.span.local
        gathered.contribute(place + self.begin[local],
                            self.begin[local + 1] - self.begin[local], NULL)
        return self.span.allgather(&gathered.all)


cdef int allreduce_sliced(Span span, const Reduction *reduction) except -1:
    """Reduce-scatter in the node, each slice between nodes by a rank of its own, allgather.

    Section k goes between the nodes while k + 1 is reduced and k - 1 is gathered.
    """
    cdef _SlicedSections work = _SlicedSections(span)
    cdef _Slice part
    cdef size_t k
    cdef size_t nbytes = reduction.elements * reduction.unit
    cdef bint uses_network
    work.reduction = reduction
    work.users = users_of_network(span)
    uses_network = span.local < work.users
    work.section = span.section(reduction.unit) * <size_t> work.users
    work.sections = (nbytes + work.section - 1) // work.section
    work.slices = []
    for k in range(work.sections + 2):
        if k < work.sections:
            work.reduce_in_node(k)
        if uses_network and 1 <= k <= work.sections:
            part = work.slices[k - 1]
            part.reduce()
        if k >= 2:
            if uses_network:
                part = work.slices[k - 2]
                part.finish()
                work.slices[k - 2] = None
            work.spread_in_node(k - 2)
    return 0


# ---------------------------------------------------------------------- Reduce_scatter

cdef int reduce_scatter(Span span, const Reduction *reduction, const Partition *blocks) except -1:
    """Each node reduces what each other node's ranks get, and sends it there in one message.

    On the way in the node, the parts for the other nodes are dealt out to its ranks; who has the
    node's own part receives the others', reduces them in the order of the nodes, and deals them
    out to the ranks that they are for.
    """
    cdef Network network = span.network
    cdef int nodes = span.nodes, node, rank, local, locals_ = span.locals, folder
    cdef size_t unit = reduction.unit, at = 0, nbytes, room
    cdef size_t *part = <size_t *> malloc((nodes + 1) * sizeof(size_t))
    cdef size_t *begin = <size_t *> malloc((locals_ + 1) * sizeof(size_t))
    cdef Partition mine
    cdef const char *send = reduction.send
    cdef char *packed
    cdef char *own
    cdef char *result
    cdef char *arrivals
    cdef list parcels = []
    cdef Messages messages = Messages(span.locals)
    if part == NULL or begin == NULL:
        free(part)
        free(begin)
        raise MemoryError
    try:
        # The vector with the blocks of a node's ranks side by side.
        packed = NULL
        if not span.placement.in_rank_order:
            packed = span.scratch(PARTIAL, blocks.begin[span.size])
        for node in range(nodes):
            part[node] = at
            for rank in span.members[node]:
                nbytes = blocks.begin[rank + 1] - blocks.begin[rank]
                if packed != NULL:
                    copy_bytes(packed + at, reduction.send + blocks.begin[rank], nbytes)
                at += nbytes
        part[nodes] = at
        if packed != NULL:
            send = packed
        # Local rank l has the parts of nodes dealer(l) to dealer(l + 1) - 1.
        mine.longest = 0
        for local in range(locals_ + 1):
            begin[local] = part[first_node_of(local, locals_, nodes)]
            if local > 0:
                mine.longest = max(mine.longest, begin[local] - begin[local - 1])
        mine.begin = begin
        mine.in_place = False
        own = span.scratch(FROM_CHILDREN, mine.longest + unit)
        span.reduce_scatter(reduction, send, own, &mine)
        folder = dealer_of(span.mine, locals_, nodes)
        nbytes = part[span.mine + 1] - part[span.mine]
        room = nbytes
        arrivals = NULL
        if span.local == folder:
            arrivals = span.scratch(PIECES, nbytes * <size_t> nodes + unit)
            for node in range(nodes):
                if node != span.mine:
                    parcels.append(network.receive(
                        span.members[node][dealer_of(span.mine, len(span.members[node]), nodes)],
                        arrivals + <size_t> node * room, room))
        for node in range(first_node_of(span.local, locals_, nodes),
                          first_node_of(span.local + 1, locals_, nodes)):
            if node != span.mine:
                rank = span.members[node][dealer_of(node, len(span.members[node]), nodes)]
                parcels.append(network.send(rank, own + (part[node] - begin[span.local]),
                                            part[node + 1] - part[node]))
        network.complete(parcels)
        nbytes = blocks.begin[span.rank + 1] - blocks.begin[span.rank]
        if span.local != folder:
            messages.receive(folder, reduction.recv, nbytes, NULL)
            span.exchange(messages)
            return 0
        copy_bytes(arrivals + <size_t> span.mine * room,
                   own + (part[span.mine] - begin[span.local]), room)
        result = arrivals
        for node in range(1, nodes):
            combine(reduction, result, result, arrivals + <size_t> node * room, room // unit)
        at = 0
        for rank in span.members[span.mine]:
            nbytes = blocks.begin[rank + 1] - blocks.begin[rank]
            if rank == span.rank:
                copy_bytes(reduction.recv, result + at, nbytes)
            else:
                messages.send(span.local_of[rank], result + at, nbytes, NULL)
            at += nbytes
        span.exchange(messages)
    finally:
        free(part)
        free(begin)
    return 0


# Nodes are dealt out to a node's ranks in even shares.
cdef int first_node_of(int local, int locals_, int nodes):
    return (local * nodes + locals_ - 1) // locals_


cdef int dealer_of(int node, int locals_, int nodes):
    return node * locals_ // nodes


# ---------------------------------------------------------------------- Scan

cdef int scan(Span span, const Reduction *reduction, bint exclusive) except -1:
    """Scan in each node; the nodes' totals, scanned between the nodes, go in front.

    Only where the nodes hold the ranks in their order. The last rank of a node knows its total.
    """
    cdef size_t nbytes = reduction.elements * reduction.unit
    cdef int last = span.locals - 1
    cdef char *total = span.scratch(PARTIAL, nbytes)
    cdef char *before = span.scratch(FROM_CHILDREN, nbytes)
    # In place, Exscan's result would overwrite the last operand before it is in the total.
    if span.local == last:
        copy_bytes(total, reduction.send, nbytes)
    span.scan(reduction, COLLECTIVE_EXSCAN if exclusive else COLLECTIVE_SCAN)
    if span.local == last:
        if not exclusive:
            copy_bytes(total, reduction.recv, nbytes)
        elif last > 0:
            combine(reduction, total, reduction.recv, total, reduction.elements)
        scan_between(span, reduction, total, before)
    if span.mine == 0:
        return 0
    span.bcast(before, nbytes, last)
    if exclusive and span.local == 0:
        copy_bytes(reduction.recv, before, nbytes)
    else:
        combine(reduction, reduction.recv, before, reduction.recv, reduction.elements)
    return 0


cdef int scan_between(Span span, const Reduction *reduction, char *total, char *before) except -1:
    """``before`` becomes the reduction of the totals of all nodes before this one.

    In step s, node i gets from i - 2^s the reduction of as many nodes up to it.
    """
    cdef Network network = span.network
    cdef size_t nbytes = reduction.elements * reduction.unit
    cdef char *arrived = span.scratch(PIECES, nbytes)
    cdef list peers = [members[len(members) - 1] for members in span.members]
    cdef int distance = 1
    cdef list parcels
    while distance < span.nodes:
        parcels = []
        if span.mine + distance < span.nodes:
            parcels.append(network.send(peers[span.mine + distance], total, nbytes))
        if span.mine >= distance:
            parcels.append(network.receive(peers[span.mine - distance], arrived, nbytes))
        network.complete(parcels)
        if span.mine >= distance:
            if distance == 1:
                copy_bytes(before, arrived, nbytes)
            else:
                combine(reduction, before, arrived, before, reduction.elements)
            combine(reduction, total, arrived, total, reduction.elements)
        distance *= 2
    return 0
