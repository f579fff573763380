"""What the compositions are made of: stages in this node's memory, and its place among nodes.

A stage is a collective of the node's engine. All stages of a call carry the call's signature, with
the stage's number in it, and its bytes in all, so that ranks that disagree are found as usual.
"""

import numpy

from smcoll.algos import COLLECTIVE_NAMES
from smcoll.internode.placement import layout, neighbours
from smcoll.tuning.select import decision_for, override

from libc.stdint cimport SIZE_MAX, uint64_t

from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_BCAST, COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER,
    with_stage,
)
from smcoll.buffers.messages cimport Messages
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.engine.failure cimport AcrossNodes
from smcoll.engine.node cimport NodeEngine
from smcoll.internode.network cimport Network


cdef enum:
    # Bytes of what is no user's: agreements, barriers. In flag lines whatever is set.
    INTERNAL = 8

# Collectives whose algorithms, set by name, have no part in a composition: an Allreduce is one of
# Reduce, Bcast and what `across_nodes` says.
ONE_NODE_ONLY = ("allreduce", "barrier", "scatter")


cdef class Span:
    """One rank's view of a communicator over several nodes."""

    def __cinit__(self, NodeEngine node, AcrossNodes across, Network network, placement, config,
                  int rank):
        self.node = node
        self.across = across
        self.network = network
        self.placement = placement
        self.config = config
        self.members = placement.members
        self.first_ranks = [members[0] for members in placement.members]
        self.node_of = placement.node_of
        self.local_of = placement.local_of
        self.rank = rank
        self.size = len(self.node_of)
        self.nodes = placement.nodes
        self.mine = self.node_of[rank]
        self.local = self.local_of[rank]
        self.locals = len(placement.members[self.mine])
        self.scratches = []
        self.layout = layout(placement.above)
        self.trees = {}
        self.fan_in = node.plans.plan(COLLECTIVE_REDUCE, override(
            decision_for(node.decisions, "reduce", 0), "reduce", algorithm="fan_in"))
        self.fan_out = node.plans.plan(COLLECTIVE_BCAST, override(
            decision_for(node.decisions, "bcast", 0), "bcast", algorithm="fan_out"))
        inner = config.internals
        self.in_lines = node.rooted_inline_size
        self.network_section = inner.network_section
        self.slice_above = {"auto": inner.slice_above, "tiled": 0}.get(
            config.across_nodes, SIZE_MAX)
        self.bundle_size = inner.bundle_size
        self.reduce_is_named = "reduce" in config.named
        self.bcast_is_named = "bcast" in config.named

    cdef void begin(self, uint64_t call, uint64_t counted, uint64_t signature, uint64_t total):
        """The next call; ``counted``: its number as users count."""
        self.signature = signature
        self.total = total
        self.stage = 0
        self.network.notices.begin(call, counted, signature, total)

    cdef char *scratch(self, int which, size_t nbytes) except NULL:
        """Memory number ``which``, kept for later calls, of at least ``nbytes`` bytes."""
        while len(self.scratches) <= which:
            self.scratches.append(numpy.empty(4096, numpy.uint8))
        memory = self.scratches[which]
        if memory.nbytes < nbytes:
            memory = self.scratches[which] = numpy.empty(nbytes, numpy.uint8)
        return <char *> <size_t> memory.ctypes.data

    def unheeded(self):
        """Which names that are set hold on one node only, in words; empty where none is set."""
        names = [f"{collective}={name}" for collective, name in self.config.named.items()
                 if collective in ONE_NODE_ONLY]
        return f"the name {', '.join(names)} holds for ranks of one node" if names else ""

    def stage_name(self, collective, size_t nbytes, list reasons):
        """The algorithm of a stage of so many bytes in this node; ``reasons`` gets its own."""
        if collective == "bcast" and nbytes <= self.in_lines and not self.bcast_is_named:
            return "fan_out"
        if collective == "reduce" and nbytes <= self.in_lines and not self.reduce_is_named:
            return "fan_in"
        learned, why = self.node.what_is_learned(collective, nbytes)
        if why is not None:
            reasons.append(f"{collective} in this node: {why}")
        return (learned or decision_for(self.node.decisions, collective, nbytes)).algorithm

    # ------------------------------------------------------------------ who does what

    cdef int leader(self, int node, int root):
        """Who speaks for a node in a call with this root; the root itself for its own."""
        if <int> self.node_of[root] == node:
            return root
        return self.members[node][0]

    cdef int local_leader(self, int root):
        """The same for this node, as the node's engine numbers its ranks."""
        return self.local_of[self.leader(self.mine, root)]

    cdef tuple tree(self, int root_node, bint chain, bint ordered):
        """(parent, children) of this node in the tree between nodes.

        ``ordered``: children stand for nodes that follow each other, whatever the switches.
        """
        key = root_node, chain, ordered
        if key not in self.trees:
            above = [()] * self.nodes if ordered else self.placement.above
            self.trees[key] = neighbours(self.mine, root_node, chain, above)
        return self.trees[key]

    cdef size_t section(self, size_t unit):
        """Bytes of a long vector that go through network and memory in one piece."""
        return max(self.network_section - self.network_section % unit, unit)

    # ------------------------------------------------------------------ stages

    cdef uint64_t next_stage(self):
        """The call's signature with the number of its next stage.

        Patience grows from who waits for a rank of its node that is not there yet, over who waits
        for another node, to who waits for one of those: the first to give up knows for whom.
        """
        self.stage += 1
        self.across.patience = 1 if self.stage == 1 else 1.5
        return with_stage(self.signature, self.stage)

    cdef int bcast(self, char *buffer, size_t nbytes, int local_root) except -1:
        """From one of this node's ranks, which may first have to hear from another node."""
        cdef Call call
        cdef const Plan *plan = &self.fan_out
        if nbytes > INTERNAL and (nbytes > self.in_lines or self.bcast_is_named):
            plan = self.node.plans.choose(COLLECTIVE_BCAST, nbytes)
        self.node.fill_call(&call, buffer, buffer, nbytes, 1, NULL, local_root)
        cdef uint64_t stage = self.next_stage()
        self.across.patience = 1.5
        return self.node.carry_out_stage(COLLECTIVE_BCAST, stage, self.total, &call, plan, NULL)

    cdef const Plan *reduction_plan(self, int collective, const Reduction *reduction,
                                    size_t nbytes) except NULL:
        if reduction.operation.kernel != NULL:
            return self.node.plans.choose(collective, nbytes)
        return self.node.ordered_plan(COLLECTIVE_NAMES[collective], nbytes, not reduction.ordered)

    cdef int reduce(self, const Reduction *reduction, const char *send, char *recv,
                    size_t elements, int local_root) except -1:
        """``send`` of all of this node's ranks into ``recv`` of one of them."""
        cdef Call call
        cdef const Plan *plan = &self.fan_in
        self.node.fill_call(&call, send, recv, elements, reduction.unit,
                            reduction.operation, local_root)
        if not reduction.internal and (reduction.ordered or self.reduce_is_named
                                       or call.nbytes > self.in_lines):
            plan = self.reduction_plan(COLLECTIVE_REDUCE, reduction, call.nbytes)
        return self.node.carry_out_stage(COLLECTIVE_REDUCE, self.next_stage(), self.total,
                                         &call, plan, NULL)

    cdef int reduce_scatter(self, const Reduction *reduction, const char *send, char *recv,
                            const Partition *blocks) except -1:
        cdef Call call
        cdef size_t nbytes = blocks.begin[self.locals]
        cdef const Plan *plan = self.reduction_plan(COLLECTIVE_REDUCE_SCATTER, reduction, nbytes)
        self.node.fill_call(&call, send, recv, nbytes // reduction.unit, reduction.unit,
                            reduction.operation, 0)
        return self.node.carry_out_stage(
            COLLECTIVE_REDUCE_SCATTER, self.next_stage(), self.total, &call, plan,
            <void *> blocks)

    cdef int scan(self, const Reduction *reduction, int collective) except -1:
        cdef Call call
        self.node.fill_call(&call, reduction.send, reduction.recv, reduction.elements,
                            reduction.unit, reduction.operation, 0)
        return self.node.carry_out_stage(
            collective, self.next_stage(), self.total, &call,
            self.reduction_plan(collective, reduction, call.nbytes), NULL)

    cdef int allgather(self, Gathering *blocks) except -1:
        cdef Call call
        self.node.fill_call(&call, blocks.send.address, NULL, blocks.longest, 1, NULL, 0)
        return self.node.carry_out_stage(
            COLLECTIVE_ALLGATHER, self.next_stage(), self.total, &call,
            self.node.plans.choose(COLLECTIVE_ALLGATHER, blocks.longest), blocks)

    cdef int exchange(self, Messages messages) except -1:
        """Messages between ranks of this node, by their numbers here."""
        return self.node.exchange_stage(self.next_stage(), messages)
