"""Messages between single ranks over several nodes: Gather, Scatter and Alltoall are made of them.

All short messages from one node to another travel in one bundle: the ranks of a node bring theirs
to the one of them that sends the bundle, and who receives it hands them out. A long message goes
straight from rank to rank; the bundle says so, and how long it is, since only its sender knows.
Messages inside a node go through its streams, while the bundles are on their way.

A bundle is a series of items: source, destination, length, and the bytes of a short message.
"""

from libc.stdint cimport int64_t

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from smcoll.base.signature cimport (
    COLLECTIVE_GATHER, COLLECTIVE_OBJECT_SCATTER, COLLECTIVE_SCATTER, gathers_objects,
)
from smcoll.buffers.messages cimport Messages
from smcoll.coll.streams cimport Transfer
from smcoll.coll.truncation cimport NOBODY, fitting
from smcoll.datatype.convertor cimport pack_next, unpack_next
from smcoll.internode.network cimport Network, Parcel
from smcoll.internode.span cimport Span


cdef struct Item:
    int64_t source, destination
    int64_t nbytes
    int64_t direct             # the message itself does not follow: it comes from its source


cdef class Routes:
    """Who sends the bundle from one node to another, and who receives it: known to all alike."""

    cdef list members
    cdef object placement
    cdef int root
    cdef bint gathers, scatters

    def __cinit__(self, Span span, int collective, int root):
        self.members = span.members
        self.placement = span.placement
        self.root = root
        self.gathers = (collective == COLLECTIVE_GATHER or gathers_objects(collective))
        self.scatters = collective in (COLLECTIVE_SCATTER, COLLECTIVE_OBJECT_SCATTER)

    cdef bint exists(self, int source, int destination):
        """Whether there is a bundle between these nodes."""
        if source == destination:
            return False
        if self.gathers:
            return <int> self.placement.node_of[self.root] == destination
        if self.scatters:
            return <int> self.placement.node_of[self.root] == source
        return True

    cdef int sender(self, int source, int destination):
        """In an all-to-all exchange the bundles are dealt out to the ranks of both nodes."""
        if self.scatters:
            return self.root
        members = self.members[source]
        return members[0 if self.gathers else destination % len(members)]

    cdef int receiver(self, int source, int destination):
        if self.gathers:
            return self.root
        members = self.members[destination]
        return members[0 if self.scatters else source % len(members)]


cdef class _BundledExchange:
    """One exchange at one rank."""

    cdef Span span
    cdef Routes routes
    cdef Messages messages
    cdef list sent                 # parcels of this rank's messages and bundles
    cdef dict numbers               # rank -> number of its message in `incoming`
    cdef list expected             # (parcel, rank) of long messages that come straight

    # ------------------------------------------------------------------ from this rank

    cdef list own_items(self):
        """For each node, the items of this rank's messages to it. Long messages set out at once."""
        cdef Transfer *message
        cdef Item item
        cdef int i
        cdef bytes memory
        cdef list items = [[] for _ in range(self.span.nodes)]
        for i in range(self.messages.sends):
            message = &self.messages.outgoing[i]
            node = self.span.node_of[message.peer]
            if node == self.span.mine:
                continue
            item.source = self.span.rank
            item.destination = message.peer
            item.nbytes = message.nbytes
            item.direct = message.nbytes > self.span.bundle_size
            items[node].append((<char *> &item)[:sizeof(Item)])
            # A copy, since in place what arrives is written over what is sent.
            memory = PyBytes_FromStringAndSize(NULL, message.nbytes)
            pack_next(&message.convertor, PyBytes_AS_STRING(memory), message.nbytes)
            if item.direct:
                self.sent.append(self.span.network.send_directly(
                    message.peer, PyBytes_AS_STRING(memory), message.nbytes, memory))
            else:
                items[node].append(memory)
        return items

    # ------------------------------------------------------------------ inside the node

    cdef list local_exchange(self, dict packets, list sources):
        """Send each packet to a local rank of this node; one packet from each of ``sources``."""
        cdef Messages messages = Messages(self.span.locals)
        cdef bytes packet
        for local, packet in packets.items():
            messages.send_bytes(local, packet)
        for local in sources:
            messages.receive_any_length(local)
        self.span.exchange(messages)
        return [messages.grown[local] for local in sources]

    cdef list bundles(self):
        """(node, bundle) of what this rank sends to other nodes, its neighbours' included."""
        cdef Span span = self.span
        cdef list items = self.own_items(), result = []
        cdef dict packets = {}
        cdef int node, sender
        mine = [node for node in range(span.nodes) if self.routes.exists(span.mine, node)]
        senders = {node: self.routes.sender(span.mine, node) for node in mine}
        if self.routes.scatters:
            return [(node, b"".join(items[node])) for node in mine if span.rank == self.routes.root]
        for node in mine:
            sender = senders[node]
            if sender != span.rank:
                local = span.local_of[sender]
                packets[local] = packets.get(local, b"") + b"".join(items[node])
        carries = span.rank in senders.values()
        arrived = []
        if packets or carries:
            arrived = self.local_exchange(
                packets, [local for local in range(span.locals) if local != span.local]
                if carries else [])
        for packet in arrived:
            for destination, item in items_of(packet):
                items[span.node_of[destination]].append(item)
        for node in mine:
            if senders[node] == span.rank:
                result.append((node, b"".join(items[node])))
        return result

    cdef int exchange_in_node(self) except -1:
        """The messages between ranks of this node, from and to where the user has them."""
        cdef Messages messages = self.messages, inside = Messages(self.span.locals)
        cdef Transfer *message
        cdef dict sent_to = {}
        cdef int i, local
        for i in range(messages.sends):
            if self.is_local(messages.outgoing[i].peer):
                local = self.span.local_of[messages.outgoing[i].peer]
                sent_to[local] = inside.sends
                message = inside.send(local, NULL, messages.outgoing[i].nbytes, NULL)
                message.convertor = messages.outgoing[i].convertor
        for i in range(messages.receives):
            if self.is_local(messages.incoming[i].peer):
                local = self.span.local_of[messages.incoming[i].peer]
                if messages.incoming[i].grows:
                    inside.receive_any_length(local)
                    continue
                message = inside.receive(local, NULL, messages.incoming[i].room, NULL)
                message.convertor = messages.incoming[i].convertor
                if messages.incoming[i].behind != NULL:
                    message.behind = &inside.outgoing[<int> sent_to[local]]
        self.span.exchange(inside)
        if inside.truncation.sender != NOBODY:
            self.messages.truncation = inside.truncation
            self.messages.truncation.sender = self.span.members[self.span.mine][
                inside.truncation.sender]
        for i in range(inside.receives):
            if inside.incoming[i].grows:
                local = inside.incoming[i].peer
                messages.grown[self.span.members[self.span.mine][local]] = inside.grown[local]
        return 0

    cdef bint is_local(self, int rank):
        return <int> self.span.node_of[rank] == self.span.mine

    # ------------------------------------------------------------------ to this rank

    cdef int hand_out(self, list bundles) except -1:
        """What arrived in this node goes to the ranks that it is for; this rank's is taken in."""
        cdef Span span = self.span
        cdef dict packets = {}
        cdef list sources
        receivers = {self.routes.receiver(node, span.mine) for node in range(span.nodes)
                     if self.routes.exists(node, span.mine)}
        if not receivers:
            return 0
        mine = b""
        if span.rank in receivers:
            if not self.routes.gathers:
                packets = {local: b"" for local in range(span.locals) if local != span.local}
            for bundle in bundles:
                for destination, item in items_of(bundle):
                    if destination == span.rank:
                        mine += item
                    else:
                        packets[span.local_of[destination]] += item
        self.take_in(mine)
        if self.routes.gathers:
            return 0
        sources = sorted(span.local_of[rank] for rank in receivers if rank != span.rank)
        for packet in self.local_exchange(packets, sources):
            self.take_in(packet)
        return 0

    cdef int take_in(self, bytes packet) except -1:
        """Messages for this rank: short ones are here, long ones are expected now."""
        cdef const char *at = PyBytes_AS_STRING(packet)
        cdef const char *end = at + PyBytes_GET_SIZE(packet)
        cdef Item *item
        cdef Transfer *message
        cdef bytes memory
        cdef char *room
        while at < end:
            item = <Item *> at
            at += sizeof(Item)
            message = &self.messages.incoming[<int> self.numbers[item.source]]
            if item.direct:
                memory = PyBytes_FromStringAndSize(NULL, item.nbytes)
                room = PyBytes_AS_STRING(memory)
                self.expected.append((self.span.network.receive_directly(
                    item.source, room, item.nbytes, memory), memory, item.source))
                continue
            if message.grows:
                self.messages.grown[item.source] = at[:item.nbytes]
            else:
                self.lay_out(message, at, item.nbytes)
            at += item.nbytes
        return 0

    cdef void lay_out(self, Transfer *message, const char *data, size_t nbytes):
        unpack_next(&message.convertor, data, fitting(
            &self.messages.truncation, message.peer, nbytes, message.room))

    cdef int take_in_long_ones(self) except -1:
        cdef Transfer *message
        cdef bytes memory
        for parcel, memory, source in self.expected:
            self.span.network.complete([parcel])
            message = &self.messages.incoming[<int> self.numbers[source]]
            if message.grows:
                self.messages.grown[source] = memory
            else:
                self.lay_out(message, PyBytes_AS_STRING(memory), PyBytes_GET_SIZE(memory))
        return 0


cdef list items_of(bytes packet):
    """(destination, item with its bytes) of a packet."""
    cdef const char *begin = PyBytes_AS_STRING(packet)
    cdef Py_ssize_t at = 0, length
    cdef Item *item
    cdef list result = []
    while at < PyBytes_GET_SIZE(packet):
        item = <Item *> (begin + at)
        length = sizeof(Item) + (0 if item.direct else item.nbytes)
        result.append((item.destination, packet[at:at + length]))
        at += length
    return result


cdef int exchange(Span span, int collective, int root, Messages messages) except -1:
    """All messages of one call, as ``Engine.exchange``."""
    cdef _BundledExchange call = _BundledExchange.__new__(_BundledExchange)
    cdef Network network = span.network
    cdef Parcel parcel
    cdef int i, node
    call.span = span
    call.routes = Routes(span, collective, root)
    call.messages = messages
    call.sent = []
    call.expected = []
    call.numbers = {}
    for i in range(messages.receives):
        call.numbers[messages.incoming[i].peer] = i
    bundles = call.bundles()
    arriving = [network.receive_any_length(call.routes.sender(node, span.mine))
                for node in range(span.nodes) if call.routes.exists(node, span.mine)
                and call.routes.receiver(node, span.mine) == span.rank]
    for node, bundle in bundles:
        call.sent.append(network.send(call.routes.receiver(span.mine, node),
                                      PyBytes_AS_STRING(bundle), PyBytes_GET_SIZE(bundle), bundle))
    call.exchange_in_node()
    network.complete(arriving)
    call.hand_out([(<Parcel> parcel).grown for parcel in arriving])
    call.take_in_long_ones()
    network.complete(call.sent)
    return 0
