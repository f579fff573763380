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
    # By a gather, and by an allgather: every rank reduces the objects itself.
    COLLECTIVE_OBJECT_REDUCE = 18
    COLLECTIVE_OBJECT_ALLREDUCE = 19
    COLLECTIVE_OBJECT_SCAN = 20
    COLLECTIVE_OBJECT_EXSCAN = 21
    COLLECTIVES = 22           # one more than the last; 0: a stage of any

# In signatures of calls without one. -1, for what has no number, is the same.
cdef enum:
    NO_OPERATION = 31
    NO_TYPE = 63
    NO_ALGORITHM = 31          # of ours: MPI carries the call out

# What ranks that are in the same call agree about, from the highest bit down: collective (5 bits),
# operation (5), element type (6), algorithm (5), stage (7), hash of the counts (20), root (16).
# Root and stage are compared modulo their room.


cdef inline bint gathers_objects(int collective) noexcept nogil:
    return collective == COLLECTIVE_OBJECT_GATHER or collective == COLLECTIVE_OBJECT_REDUCE


cdef inline bint allgathers_objects(int collective) noexcept nogil:
    return (collective == COLLECTIVE_OBJECT_ALLGATHER
            or COLLECTIVE_OBJECT_ALLREDUCE <= collective <= COLLECTIVE_OBJECT_EXSCAN)


cdef inline uint64_t pack_signature(int collective, int op, int element_type, int algorithm,
                                    int root) noexcept nogil:
    return (<uint64_t> (collective & 31) << 59 | <uint64_t> (op & 31) << 54
            | <uint64_t> (element_type & 63) << 48 | <uint64_t> (algorithm & 31) << 43
            | <uint64_t> (root & 0xffff))


# Of a call over several nodes: its stages in one node, and blocks of different lengths.
cdef inline uint64_t with_stage(uint64_t signature, int stage) noexcept nogil:
    return signature | <uint64_t> (stage & 127) << 36


cdef inline uint64_t with_counts(uint64_t signature, uint64_t counts_hash) noexcept nogil:
    return signature | (counts_hash & 0xfffff) << 16


cdef inline int collective_in(uint64_t signature) noexcept nogil:
    return <int> (signature >> 59)


cdef inline int operation_in(uint64_t signature) noexcept nogil:
    return <int> (signature >> 54) & 31


cdef inline int element_type_in(uint64_t signature) noexcept nogil:
    return <int> (signature >> 48) & 63


cdef inline bint is_carried_out_by_mpi(uint64_t signature) noexcept nogil:
    return (signature >> 43 & 31) == NO_ALGORITHM


cdef inline int counts_hash_in(uint64_t signature) noexcept nogil:
    return <int> (signature >> 16) & 0xfffff


cdef inline int root_in(uint64_t signature) noexcept nogil:
    return <int> (signature & 0xffff)


# A hash of all calls up to this one, of those before it and of what it is. By 2^64 over the golden
# ratio (Knuth, vol. 3, 6.4), whose upper bits are best.
cdef inline uint64_t history_with(uint64_t history, uint64_t signature,
                                  uint64_t nbytes) noexcept nogil:
    history = (history ^ signature ^ nbytes << 17) * <uint64_t> 0x9E3779B97F4A7C15
    return history ^ history >> 29
