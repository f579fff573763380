from libc.stdint cimport int64_t

from smcoll.sync.team cimport Distance, Team


cdef bint look_at_distance(Team *team, Distance *distance) noexcept nogil
cdef bint note_line(Distance *distance, int64_t ns) noexcept nogil
