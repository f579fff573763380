"""Allreduce between nodes, of one rank on each: every one gets bitwise the same result.

That is protocol rule 7, which MPI does not promise of its own Allreduce: so these are made of
messages.
"""

from smcoll.base.kernels cimport copy_bytes
from smcoll.internode.network cimport Network
from smcoll.internode.span cimport Reduction, Span, combine


cdef int allreduce_between(Span span, const Reduction *reduction, char *vector, size_t elements,
                           list peers) except -1:
    """``vector`` becomes the reduction of all nodes' vectors: in their order where operands must
    keep it, else as they lie below switches, so that the first steps stay there (LHS 2.5).

    ``peers``: the rank that does it on each node. By ``Config.across_nodes``; the default is what
    takes fewest steps: recursive doubling takes two more where nodes are no power of two.
    """
    cdef int mine = span.mine
    if not reduction.ordered:
        mine = span.layout.index(mine)
        peers = [peers[node] for node in span.layout]
    if chosen_between(span, elements * reduction.unit) == "dissemination":
        return dissemination(span, reduction, vector, elements, peers, mine)
    return recursive_doubling(span, reduction, vector, elements, peers, mine)


cdef str chosen_between(Span span, size_t nbytes):
    """The algorithm for a vector of so many bytes."""
    cdef int nodes = span.nodes
    if span.config.across_nodes in ("tree", "dissemination"):
        return "recursive_doubling" if span.config.across_nodes == "tree" else "dissemination"
    few_bytes = nbytes * <size_t> nodes <= 16384
    return "dissemination" if nodes & (nodes - 1) and few_bytes else "recursive_doubling"


cdef int recursive_doubling(Span span, const Reduction *reduction, char *vector, size_t elements,
                            list peers, int mine) except -1:
    """log2(nodes) exchanges of everything; the lower node's operand stands left on both sides.

    Beyond the largest power of two, N, the first nodes fold in pairs of neighbours, so that every
    partial result stands for nodes that follow each other.
    """
    cdef Network network = span.network
    cdef size_t nbytes = elements * reduction.unit
    cdef int nodes = span.nodes, power = 1, extra, place, partner, distance
    cdef char *theirs = span.scratch(1, nbytes)
    while 2 * power <= nodes:
        power *= 2
    extra = nodes - power
    if mine < 2 * extra and mine % 2 == 0:
        network.complete([network.send(peers[mine + 1], vector, nbytes)])
        network.complete([network.receive(peers[mine + 1], vector, nbytes)])
        return 0
    if mine < 2 * extra:
        network.complete([network.receive(peers[mine - 1], theirs, nbytes)])
        combine(reduction, vector, theirs, vector, elements)
    place = mine // 2 if mine < 2 * extra else mine - extra
    distance = 1
    while distance < power:
        partner = place ^ distance
        partner = 2 * partner + 1 if partner < extra else partner + extra
        network.complete([network.send(peers[partner], vector, nbytes),
                          network.receive(peers[partner], theirs, nbytes)])
        if partner < mine:
            combine(reduction, vector, theirs, vector, elements)
        else:
            combine(reduction, vector, vector, theirs, elements)
        distance *= 2
    if mine < 2 * extra:
        network.complete([network.send(peers[mine - 1], vector, nbytes)])
    return 0


cdef int dissemination(Span span, const Reduction *reduction, char *vector, size_t elements,
                       list peers, int mine) except -1:
    """ceil(log2 nodes) steps for any number of nodes (LHS 2.5): nodes * ceil(log2 nodes) messages.

    In step s a node sends to the node 2^s before it and hears from the one 2^s behind. LHS send
    partial results, so that each node combines in another order and gets other bits; here the
    operands travel, and every node combines them in the order of the nodes.
    """
    cdef Network network = span.network
    cdef size_t nbytes = elements * reduction.unit
    cdef int nodes = span.nodes, known = 1, more, i
    # The operands of nodes mine, mine + 1, ..., round the ring.
    cdef char *operands = span.scratch(1, nbytes * <size_t> nodes)
    copy_bytes(operands, vector, nbytes)
    while known < nodes:
        more = min(known, nodes - known)
        network.complete([
            network.send(peers[(mine - known) % nodes], operands, nbytes * <size_t> more),
            network.receive(peers[(mine + known) % nodes], operands + nbytes * <size_t> known,
                            nbytes * <size_t> more)])
        known += more
    copy_bytes(vector, operands + nbytes * <size_t> ((nodes - mine) % nodes), nbytes)
    for i in range(1, nodes):
        combine(reduction, vector, vector,
                operands + nbytes * <size_t> ((nodes - mine + i) % nodes), elements)
    return 0
