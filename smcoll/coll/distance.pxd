from libc.stdint cimport int64_t

from smcoll.sync.team cimport Distance, Team


cdef bint look_at_distance(Team *team, Distance *distance) noexcept nogil
cdef bint is_same_distance(int64_t one_ns, int64_t other_ns) noexcept nogil
cdef bint note_line(Distance *distance, int64_t ns) noexcept nogil
