from libc.stdint cimport uint64_t

# Collectives, as they stand in signatures.
cdef enum:
    COLLECTIVE_BARRIER = 1
    COLLECTIVE_BCAST = 2
    COLLECTIVE_REDUCE = 3
    COLLECTIVE_ALLREDUCE = 4
    COLLECTIVE_RESERVE = 5     # reserving the data regions or the streams, in agreement
    COLLECTIVE_GATHER = 6
    COLLECTIVE_SCATTER = 7
    COLLECTIVE_ALLGATHER = 8
    COLLECTIVE_ALLTOALL = 9
    COLLECTIVE_REDUCE_SCATTER = 10
    COLLECTIVE_SCAN = 11
    COLLECTIVE_EXSCAN = 12
    # The lower-case collectives, whose messages are Python objects.
    COLLECTIVE_OBJECT_BCAST = 13
    COLLECTIVE_OBJECT_GATHER = 14
    COLLECTIVE_OBJECT_SCATTER = 15
    COLLECTIVE_OBJECT_ALLGATHER = 16
    COLLECTIVE_OBJECT_ALLTOALL = 17
    COLLECTIVES = 18           # one more than the last; 0: a stage of any

# In signatures of calls without one.
cdef enum:
    NO_OPERATION = 31
    NO_TYPE = 63


cdef inline int collective_in(uint64_t signature) noexcept nogil:
    return <int> (signature >> 59)


cdef inline uint64_t pack_signature(int collective, int op, int element_type, int algorithm,
                                    int fan_in, int fan_out, int root) noexcept nogil:
    return (<uint64_t> (collective & 31) << 59 | <uint64_t> (op & 31) << 54
            | <uint64_t> (element_type & 63) << 48 | <uint64_t> (algorithm & 255) << 40
            | <uint64_t> (fan_in & 255) << 32 | <uint64_t> (fan_out & 255) << 24
            | <uint64_t> (root & 0xffffff))
