from libc.stdint cimport int64_t, uint32_t, uint64_t

from smcoll.sync.team cimport Distance, Team

cdef enum:
    STAGED_ROUTE = 0           # through the chunks of the streams, or the data regions
    IN_PLACE_ROUTE = 1         # used by other ranks where the message, or array, lies
    ROUTES = 2
    # How a long result is written.
    THROUGH_CACHES = 0
    AROUND_CACHES = 1
    BURST_CALLS = 8
    TURN_CALLS = 2 * BURST_CALLS    # in which one rank may begin a trial at once
    ROUTE_CLASSES = 16         # sizes, by powers of two from SMALLEST_ROUTED on
    FAR_LINE_NS = 100          # half of what `tuning.distance` takes for near, there and back
    SMALLEST_ROUTED = 262144   # bytes that a rank hands out, or of the call
    # Of an Allgather, so many that staged messages, which take a little longer, are one call in
    # nine; not more, since meanwhile nobody looks whether the kernel is faster.
    DETOUR_CALLS = 250


# What was found at one distance of the cores.
cdef struct Finding:
    int taken                  # the faster route
    double ns[ROUTES]          # from one call's end to the next one's; 0: not known


# What a rank knows of the two routes of one collective and size. Private to the rank.
cdef struct RouteChoice:
    Finding found
    int tried                  # the route of this burst
    uint64_t ends              # calls that have ended
    uint64_t next_trial        # number of the burst that tries the other one; burst 0 is the first
    uint32_t phase             # by how many bursts trials are earlier than those of phase 0
    uint32_t calls             # of this burst so far, that count
    uint32_t verdicts          # how many trials there were
    double gained              # by the other one, in trials that it has won in a row
    Distance distance
    int64_t line_ns_before     # of the distance before it changed; 0: it never did
    Finding before             # what was found at that one
    uint32_t alarms            # how often the distance has changed since the route did
    int64_t ended              # the last call; 0: there was none
    double sample[BURST_CALLS]  # of this burst, in ascending order


# What two ranks know of their Allgathers of one size: the same on both.
cdef struct Detour:
    int staged                 # calls in a row in which no block was offered for the kernel
    int left                   # so many calls from now on go through the data regions


cdef void end_messages(Detour *detour, bint staged) noexcept nogil
# For each size, beginning with this route; to be freed. ``number``: another one for each collective
# and purpose.
cdef RouteChoice *new_choices(int first, int number) except NULL
# From so many bytes on they begin with another one.
cdef void begin_long_by(RouteChoice *choices, size_t nbytes, int route) noexcept nogil
# (The one in use, why); ``names``: of both.
cdef tuple describe_choice(const RouteChoice *choice, tuple names)
# Which begins with this route.
cdef void begin_choice(RouteChoice *choice, int route, uint32_t phase) noexcept nogil
cdef void begin_by(RouteChoice *choice, int route) noexcept nogil
cdef void note_call(Team *team, RouteChoice *choice, bint alone, bint together) noexcept nogil
cdef void add_call(RouteChoice *choice, int64_t now, bint in_turn, bint together) noexcept nogil
# The distance has changed; before, a line took so long.
cdef void change_distance(RouteChoice *choice, int64_t line_ns) noexcept nogil
cdef int route_class(size_t nbytes) noexcept nogil


# Whether the next rank's core is far, as far as measured calls know.
cdef inline bint is_far(const RouteChoice *choice) noexcept nogil:
    return choice.distance.line_ns > FAR_LINE_NS
