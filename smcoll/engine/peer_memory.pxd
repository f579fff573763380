cimport cython
from smcoll.coll.routes cimport ROUTE_CLASSES, RouteChoice
from smcoll.coll.streams cimport Transfer
from smcoll.engine.member cimport Member
from smcoll.memory.cross_memory cimport OtherProcess
from smcoll.memory.heap cimport HeapView


@cython.final
cdef class PeerMemory:
    cdef Member member
    cdef object heaps          # keeps the peers' heaps mapped
    cdef HeapView *heap_views
    cdef readonly dict direct_sizes       # from where on messages are read in heaps, by collective
    cdef readonly dict kernel_copy_sizes  # from where on they may do so, by collective
    cdef bint measures_scatter, measures_alltoall   # whether they do where it is faster
    cdef RouteChoice scatter_routes[ROUTE_CLASSES]
    cdef RouteChoice alltoall_routes[ROUTE_CLASSES]
    cdef OtherProcess *processes   # where the ranks can read each other's memory

    cdef void keep(self, const void *buffer) noexcept nogil
    cdef bint may_be_read(self, int collective, const Transfer *outgoing, int sends,
                          RouteChoice **choice) noexcept
