from libc.stdint cimport int64_t, uint32_t, uint64_t

from smcoll.base.atomics cimport load_relaxed, monotonic_ns, store_relaxed
from smcoll.base.kernels cimport STORES_KINDS
from smcoll.segment cimport Line
from smcoll.sync.team cimport StoreClass, Team

cdef enum:
    SMALLEST_CHOICE = 4096     # bytes of the first class; below it ordinary stores are used
    SMALLEST_SAMPLE = 1024     # bytes of one copy that is worth looking at the clock
    UNKNOWN_STORES = 0xff      # in a line: its owner did not choose


cdef StoreClass *store_class(Team *team, size_t nbytes, uint64_t sections) noexcept nogil
cdef StoreClass *store_class_of(Team *team, int collective, size_t nbytes) noexcept nogil
cdef void tell_overlap(const Team *team, StoreClass *chosen, uint64_t pieces) noexcept nogil
cdef describe_stores(Team *team, int collective, size_t nbytes)
cdef int init_stores(Team *team, int fixed, bint far) except -1
cdef void survey_again(Team *team, size_t nbytes) noexcept nogil
cdef bint stores_are_settled(const Team *team, int collective, size_t nbytes) noexcept nogil
cdef void free_stores(Team *team) noexcept
cdef void add_store_sample(StoreClass *chosen, int kind, int64_t ns, size_t nbytes) noexcept nogil
cdef bint samples_read(StoreClass *chosen, int kind, size_t nbytes) noexcept nogil
cdef void add_read_sample(StoreClass *chosen, int kind, int64_t ns, size_t nbytes) noexcept nogil


cdef int choose_stores(Team *team, StoreClass *chosen, uint64_t number, uint32_t ring,
                       bint is_fresh, bint *sampled) noexcept nogil


# The kind of stores for the class's section number `number`. `ring`: places in the ring.
# `is_fresh`: not all of its memory has been used once. `sampled`: set where its cost is to be
# measured (add_store_sample). `chosen`: NULL where one kind is fixed.
cdef inline int next_stores(Team *team, StoreClass *chosen, uint64_t number, uint32_t ring,
                            bint is_fresh, bint *sampled) noexcept nogil:
    if chosen != NULL:
        return choose_stores(team, chosen, number, ring, is_fresh, sampled)
    sampled[0] = False
    return team.stores.fixed if team.stores.fixed >= 0 else 0


# In the line of a segment or of a stream's cell, beside the places of a message: a hint for
# statistics, so nothing is ordered by it.
cdef inline void tell_stores(Line *line, int stores) noexcept nogil:
    store_relaxed(<uint64_t *> line.payload + 2, stores)


cdef inline int told_stores(const Line *line) noexcept nogil:
    cdef uint64_t kind = load_relaxed(<const uint64_t *> line.payload + 2)
    return <int> kind if kind < STORES_KINDS else UNKNOWN_STORES


# When a sample of reading what was stored so begins. What is read from memory that is used for the
# first time (`is_fresh`) is none.
cdef inline int64_t start_reading(StoreClass *chosen, int kind, size_t nbytes,
                                  bint is_fresh) noexcept nogil:
    if (chosen == NULL or kind == UNKNOWN_STORES or nbytes < SMALLEST_SAMPLE or is_fresh
            or not samples_read(chosen, kind, nbytes)):
        return 0
    return monotonic_ns()


cdef inline void end_reading(StoreClass *chosen, int kind, int64_t began,
                             size_t nbytes) noexcept nogil:
    if began != 0:
        add_read_sample(chosen, kind, monotonic_ns() - began, nbytes)
