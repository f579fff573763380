"""Other ranks' own memory: their shared heaps, and what is read through the kernel."""

cimport cython
from libc.stdlib cimport free, malloc

from smcoll.base.signature cimport COLLECTIVES
from smcoll.coll.peer_buffers cimport own_offset
from smcoll.coll.pipeline cimport Call, has_own_kernels
from smcoll.coll.routes cimport (
    IN_PLACE_ROUTE, STAGED_ROUTE, RouteChoice, begin_long_by, describe_choice, is_far,
    new_choices, route_class,
)
from smcoll.coll.streams cimport Transfer
from smcoll.engine.member cimport Member
from smcoll.memory.cross_memory cimport OtherProcess, fill_process
from smcoll.memory.heap cimport STAGED, HeapView, PeerHeap, heap_keep, own_heap
from smcoll.sync.team cimport Team

from smcoll.algorithms import ALGORITHMS
from smcoll.algos import COLLECTIVE_NUMBERS

ROUTE_NAMES = ("staged", "in its sender's memory")


@cython.final
cdef class PeerMemory:
    """Which messages are read where they lie, and by which way."""

    def __cinit__(self, Member member not None):
        self.member = member
        cdef int collective
        self.direct_sizes = {}
        self.kernel_copy_sizes = {}
        self.measured_in_heaps = set()
        self.measured_routes = set()
        for collective in range(COLLECTIVES):
            self.shared_heap[collective] = -1

    def __dealloc__(self):
        cdef int collective
        free(self.heap_views)
        free(self.processes)
        for collective in range(COLLECTIVES):
            free(self.routes[collective])
            free(self.heap_routes[collective])

    def use_heaps(self, heaps, sizes, measured):
        """Take over every rank's heap, as mapped here; None for the own one.

        ``sizes``: from how many bytes messages are read there, by collective. ``measured``: the
        same of the first calls of collectives whose arrays are used there where staging does not
        turn out to be faster.
        """
        cdef Team *team = &self.member.team
        cdef PeerHeap peer
        cdef int rank, number
        self.heap_views = <HeapView *> malloc(team.size * sizeof(HeapView))
        if self.heap_views == NULL:
            raise MemoryError()
        for rank in range(team.size):
            if heaps[rank] is None:
                self.heap_views[rank] = own_heap()
            else:
                peer = heaps[rank]
                self.heap_views[rank] = peer.view
        self.heaps = heaps
        team.heaps = self.heap_views
        for collective, nbytes in sizes.items():
            team.direct_from[<int> COLLECTIVE_NUMBERS[collective]] = nbytes
        self.direct_sizes = sizes
        self.measured_in_heaps = set(measured)
        for collective, first_in_place in measured.items():
            number = COLLECTIVE_NUMBERS[collective]
            if collective not in sizes and team.rank > 0:
                continue
            self.heap_routes[number] = new_choices(STAGED_ROUTE, number + COLLECTIVES)
            begin_long_by(self.heap_routes[number], first_in_place, IN_PLACE_ROUTE)
            if collective not in sizes:
                self.shared_heap[number] = ALGORITHMS[collective].index("shared_heap")
                self.chooses_for_all = True

    def choose_no_more(self, collectives):
        """Rank 0 does not choose for all ranks any more whether to stage in these collectives."""
        self.measured_in_heaps.difference_update(collectives)
        for collective in collectives:
            self.shared_heap[<int> COLLECTIVE_NUMBERS[collective]] = -1

    def use_processes(self, records, sizes, measured):
        """The ranks can read each other's memory through the kernel: every one's record.

        ``sizes``: from how many bytes handed out they do, by collective; in those that are
        ``measured`` where it turns out to be faster. Their values: from how many bytes on the first
        calls do, before anything is measured; None: never.
        """
        cdef Team *team = &self.member.team
        cdef int rank, number
        self.processes = <OtherProcess *> malloc(team.size * sizeof(OtherProcess))
        if self.processes == NULL:
            raise MemoryError()
        for rank in range(team.size):
            fill_process(&self.processes[rank], records[rank])
        team.processes = self.processes
        for collective, nbytes in sizes.items():
            team.kernel_copy_from[<int> COLLECTIVE_NUMBERS[collective]] = nbytes
        self.kernel_copy_sizes = sizes
        self.measured_routes = set(measured)
        for collective, first_in_place in measured.items():
            number = COLLECTIVE_NUMBERS[collective]
            self.routes[number] = new_choices(STAGED_ROUTE, number)
            if first_in_place is not None:
                begin_long_by(self.routes[number], first_in_place, IN_PLACE_ROUTE)

    cdef void keep(self, const void *buffer) noexcept nogil:
        """This rank leaves a call in which others may still use ``buffer`` where it lies."""
        if self.heap_views != NULL:
            heap_keep(buffer)

    cdef bint may_be_read(self, int collective, const Transfer *outgoing, int sends,
                          RouteChoice **choice) noexcept:
        """Whether receivers should read these messages themselves, through the kernel.

        ``choice``: where that is measured, what knows of it; else NULL.
        """
        cdef size_t total = 0
        cdef int i
        choice[0] = NULL
        if self.processes == NULL:
            return False
        for i in range(sends):
            total += outgoing[i].nbytes
        if total < self.member.team.kernel_copy_from[collective]:
            return False
        if self.routes[collective] != NULL:
            choice[0] = &self.routes[collective][route_class(total)]
        return choice[0] == NULL or choice[0].tried == IN_PLACE_ROUTE

    cdef tuple describe_route(self, int collective, size_t handed_out):
        """(route of so many bytes handed out in private memory, why); None: it is not measured."""
        if (self.routes[collective] == NULL
                or handed_out < self.member.team.kernel_copy_from[collective]):
            return None
        return describe_choice(&self.routes[collective][route_class(handed_out)], ROUTE_NAMES)

    cdef RouteChoice *choice_in_heap(self, int collective, const Transfer *outgoing,
                                     int sends) noexcept:
        """What knows whether the receiver should read this message in this rank's heap, as long as
        that is measured; NULL: nothing."""
        cdef Team *team = &self.member.team
        if (sends != 1 or self.heap_routes[collective] == NULL
                or outgoing.nbytes < team.direct_from[collective]
                or outgoing.convertor.runs != NULL
                or own_offset(team, outgoing.convertor.address, outgoing.nbytes) == STAGED):
            return NULL
        return &self.heap_routes[collective][route_class(outgoing.nbytes)]

    cdef RouteChoice *choose_for_all(self, int collective, Call *call) noexcept nogil:
        """On rank 0: say in the call whether all ranks stage its arrays, and how far the other one
        of two is. Returns what is to know how long it takes; NULL: nothing."""
        cdef RouteChoice *choice
        call.staged_by_all = call.peer_is_far = False
        if (call.plan.algorithm != self.shared_heap[collective] or not has_own_kernels(call)
                or own_offset(&self.member.team, call.send, call.nbytes) == STAGED):
            return NULL
        choice = &self.heap_routes[collective][route_class(call.nbytes)]
        call.peer_is_far = is_far(choice)
        if self.member.team.tried_in == self.member.team.number:
            # Learning compares this algorithm with others (engine/learning): as it is used.
            call.staged_by_all = choice.found.taken == STAGED_ROUTE
            return NULL
        call.staged_by_all = choice.tried == STAGED_ROUTE
        return choice
