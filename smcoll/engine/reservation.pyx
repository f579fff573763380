"""A member's memory beyond the flags: data regions, streams, the peers' shared heaps.

Regions and streams are reserved when a call first needs them, on all ranks or on none.
"""

import errno
import os
import sys
from collections import Counter

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

from smcoll.algos cimport needs_data_regions
from smcoll.barrier cimport begin_call
from smcoll.base.atomics cimport unlock
from smcoll.base.signature cimport COLLECTIVE_RESERVE, NO_OPERATION, NO_TYPE, pack_signature
from smcoll.coll.inline cimport allreduce_all_read_inline
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.coll.routes cimport ROUTE_CLASSES, begin_choice
from smcoll.coll.streams cimport Stream, init_streams
from smcoll.engine.membership cimport Member
from smcoll.kernels.kernels cimport OP_MIN, TYPE_INT64, Operation, reduction_kernel_for
from smcoll.memory.cross_memory cimport OtherProcess, fill_process
from smcoll.memory.heap cimport HeapView, PeerHeap, heap_keep, own_heap
from smcoll.sync.team cimport FAILED_EXCEPTION

from smcoll.algos import COLLECTIVE_NUMBERS
from smcoll.errors import SegmentError
from smcoll.topology.pages import pages_by_node


cdef class MemberWithMemory(Member):
    """Reserves what calls need, and agrees on it."""

    def __cinit__(self):
        self.direct_sizes = {}
        self.kernel_copy_sizes = {}
        # The operands of one call, from every rank: as such, and two more lists for slices.
        self.sources = <const void **> malloc(3 * self.team.size * sizeof(void *))
        if self.sources == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.sources)
        free(self.streams)
        free(self.heap_views)
        free(self.processes)

    # ------------------------------------------------------------------ other ranks' own memory

    def use_heaps(self, heaps, sizes):
        """Take over every rank's heap, as mapped here; None for the own one.

        ``sizes``: from how many bytes messages are read there, by collective.
        """
        cdef PeerHeap peer
        cdef int rank
        self.heap_views = <HeapView *> malloc(self.team.size * sizeof(HeapView))
        if self.heap_views == NULL:
            raise MemoryError()
        for rank in range(self.team.size):
            if heaps[rank] is None:
                self.heap_views[rank] = own_heap()
            else:
                peer = heaps[rank]
                self.heap_views[rank] = peer.view
        self.heaps = heaps
        self.team.heaps = self.heap_views
        for collective, nbytes in sizes.items():
            self.team.direct_from[<int> COLLECTIVE_NUMBERS[collective]] = nbytes
        self.direct_sizes = sizes

    def use_processes(self, records, sizes, measured):
        """The ranks can read each other's memory through the kernel: every one's record.

        ``sizes``: from how many bytes handed out they do, by collective; in those that are
        ``measured`` where it turns out to be faster.
        """
        cdef int rank, i
        self.processes = <OtherProcess *> malloc(self.team.size * sizeof(OtherProcess))
        if self.processes == NULL:
            raise MemoryError()
        for rank in range(self.team.size):
            fill_process(&self.processes[rank], records[rank])
        self.team.processes = self.processes
        for collective, nbytes in sizes.items():
            self.team.kernel_copy_from[<int> COLLECTIVE_NUMBERS[collective]] = nbytes
        self.kernel_copy_sizes = sizes
        self.measures_alltoall = "alltoall" in measured
        self.measures_scatter = "scatter" in measured
        for i in range(ROUTE_CLASSES):
            begin_choice(&self.scatter_routes[i])
            begin_choice(&self.alltoall_routes[i])

    cdef void keep(self, const void *buffer) noexcept nogil:
        """This rank leaves a call in which others may still use ``buffer`` where it lies."""
        if self.team.heaps != NULL:
            heap_keep(buffer)

    # ------------------------------------------------------------------ data regions and streams

    cdef int have_data_regions(self, int collective, const Plan *plan, size_t nbytes,
                               uint64_t signature) except -1:
        """CARRIED_OUT when the call can go on, USE_MPI when all ranks agree that it can't."""
        if not needs_data_regions(&self.team, collective, plan.algorithm, nbytes):
            return CARRIED_OUT
        if self.mapping.data_reserved:
            return CARRIED_OUT
        if self.data_refused:
            if self.config.strict:
                raise SegmentError("the data regions could not be reserved")
            return USE_MPI
        return self.reserve(DATA_REGIONS, signature, nbytes)

    cdef int have_streams(self, uint64_t signature) except -1:
        """The same for the streams."""
        if self.mapping.streams_reserved:
            return CARRIED_OUT
        if self.streams_refused:
            if self.config.strict:
                raise SegmentError("the streams could not be reserved")
            return USE_MPI
        return self.reserve(STREAMS, signature, 0)

    def reserve_data(self):
        """Reserve the data regions and the streams now, not at first use. Collective."""
        cdef uint64_t signature = pack_signature(COLLECTIVE_RESERVE, NO_OPERATION, NO_TYPE, 0, 0,
                                                 0, 0)
        # Where the first could not be had the second is left for when a call needs it.
        if self.reserve(DATA_REGIONS, signature, 0) == CARRIED_OUT:
            self.reserve(STREAMS, signature, 0)
        self.continues = False

    cdef reserve_part(self, int part):
        if part == DATA_REGIONS:
            self.mapping.reserve_data()
            return
        self.streams = <Stream *> malloc(self.team.size * sizeof(Stream))
        if self.streams == NULL:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self.mapping.reserve_streams()
        init_streams(&self.team, self.streams, self.start)

    cdef map_of_peers(self, int part):
        if part == DATA_REGIONS:
            self.mapping.map_data_of_peers()
        else:
            self.mapping.map_streams_of_peers()

    cdef reserve_mine(self, int part, size_t wanted):
        """This rank's part; the problem, or None."""
        try:
            self.budget.claim(wanted, self.mapping.kind)
        except (OSError, MemoryError) as error:
            return error
        try:
            self.reserve_part(part)
        except (OSError, MemoryError) as error:
            self.budget.give_back(wanted)
            return error
        except BaseException:
            self.budget.give_back(wanted)
            raise
        return None

    cdef int reserve(self, int part, uint64_t signature, uint64_t nbytes) except -1:
        """Reserve the data regions or the streams on all ranks, or on none (protocol rules 4, 5).

        ``signature`` and ``nbytes``: of the call that needs them, for the ranks to compare.
        """
        cdef int64_t mine = 1, everyone = 0
        cdef Call call
        cdef size_t wanted = (self.team.layout.data if part == DATA_REGIONS
                              else self.team.layout.streams)
        cdef Operation minimum
        cdef bint peers_are_here = self.continues
        # First of all: a call that is refused here must leave nothing changed.
        self.enter()
        try:
            problem = self.reserve_mine(part, wanted)
        except BaseException as error:
            if not peers_are_here:
                unlock(&self.team.status.busy)
                raise
            self.attendant.fail(error)
            self.leave(FAILED_EXCEPTION)
        mine = problem is None
        begin_call(&self.team, signature, nbytes)
        minimum.kernel = reduction_kernel_for(OP_MIN, TYPE_INT64, self.instruction_set)
        call.team = &self.team
        call.send = <const char *> &mine
        call.recv = <char *> &everyone
        call.nbytes = sizeof(mine)
        call.elements = 1
        call.operation = &minimum
        call.sources = self.sources
        self.leave(allreduce_all_read_inline(&call))
        # What needed the memory follows at once, on all ranks.
        self.continues = True
        if everyone:
            self.map_of_peers(part)
            return CARRIED_OUT
        if mine:
            self.budget.give_back(wanted)
        title = "data regions" if part == DATA_REGIONS else "streams"
        affected = "large messages" if part == DATA_REGIONS else "Gather, Scatter and Alltoall"
        if part == DATA_REGIONS:
            self.mapping.give_data_back()
            self.data_refused = True
        else:
            self.mapping.give_streams_back()
            self.streams_refused = True
        message = (f"the {title} ({wanted} bytes per rank) could not be "
                   f"reserved{'' if problem is None else f': {problem}'}")
        if self.config.strict:
            raise SegmentError(message)
        if self.team.rank == 0:
            print(f"smcoll: {message}; {affected} of this communicator go through MPI",
                  file=sys.stderr, flush=True)
        return USE_MPI

    # ------------------------------------------------------------------ what there is

    @property
    def bytes_mapped(self):
        """Size of the communicator's whole mapping."""
        return self.mapping.bytes_mapped

    @property
    def bytes_reserved(self):
        """Shared memory that this rank has really reserved."""
        return self.mapping.bytes_reserved

    def pages_by_node(self):
        """Pages of this rank's reserved memory by NUMA node; None where the kernel can't say."""
        found = [pages_by_node(*part) for part in self.mapping.reserved_ranges()]
        if None in found:
            return None
        return dict(sum(map(Counter, found), Counter()))

    @property
    def uses_heaps(self):
        """Whether the ranks have mapped each other's shared heaps."""
        return self.team.heaps != NULL

    @property
    def stream_chunk(self):
        """Bytes of a chunk of the streams between pairs of ranks."""
        return self.team.layout.stream_chunk

    @property
    def stream_inline(self):
        """Longest message, in bytes, that travels in a stream's cell."""
        return self.team.layout.stream_inline

    @property
    def segment_name(self):
        """The name that the segment had until all ranks had mapped it."""
        return self.mapping.name
