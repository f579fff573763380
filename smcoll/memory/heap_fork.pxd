from smcoll.memory.extents cimport Extents
from smcoll.memory.heap_pages cimport HeapPages

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass


# What fork has to know of this process's heap.
cdef struct Forked:
    HeapPages *pages
    Extents *extents
    pthread_mutex_t *mutex     # guards the extents
    bint *inherited            # set in the child: private copies, no new blocks


cdef void heed_forks(Forked forked) noexcept nogil
