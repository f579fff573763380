"""How far the next rank's core is: told by the time that a line takes from there.

Virtual machines change it within seconds, unbound ranks by moving. Then kinds of stores and routes
are compared anew (``stores``, ``routes``). The cost of reading would not tell: what was stored
around the caches comes from memory, just as fast to near cores as to far ones.

Each collective and size has its own: a call that moves much drives the line out of its owner's
cache, and from where it is then it takes another time. A program whose calls differ would see cores
move.

=========================  ==========================  ==========================================
word                       stored by                   loaded by
=========================  ==========================  ==========================================
``Status.current_call``    its owner, in each call     the rank before it, relaxed, now and then:
                                                       for the time it takes, so it orders nothing
=========================  ==========================  ==========================================
"""

from smcoll.base.atomics cimport load_relaxed, monotonic_ns
from smcoll.segment cimport Status, status_of

cdef enum:
    FIRST_LOOKS = 4            # of which the least counts: caches and page tables are cold
    MOVED = 2                  # cores have where a line takes more than so many times as long, in
    LOOKS_IF_LONGER = 4        # so many looks in a row, since much makes a single line come late;
    LOOKS_IF_SHORTER = 2       # or less than that part, since some clocks count in steps of 10 ns


cdef bint look_at_distance(Team *team, Distance *distance) noexcept nogil:
    """Time a line. Whether it was unlike those before: then look again soon."""
    return note_line(distance, time_of_line(team))


cdef int64_t time_of_line(Team *team) noexcept nogil:
    """ns; 0: it was here already, or comes too fast for this clock."""
    cdef Status *status = status_of(&team.layout, team.base, (team.rank + 1) % team.size)
    cdef int64_t began = monotonic_ns(), first, again
    load_relaxed(&status.current_call)
    first = monotonic_ns() - began
    load_relaxed(&status.current_call)
    # Now it comes from our own cache, so this is what the clock takes.
    again = monotonic_ns() - began - first
    return first - again if 4 * (first - again) >= 3 * again else 0


cdef bint is_same_distance(int64_t one_ns, int64_t other_ns) noexcept nogil:
    """By two times of a line."""
    return one_ns <= MOVED * other_ns and other_ns <= MOVED * one_ns


cdef bint note_line(Distance *distance, int64_t ns) noexcept nogil:
    """A line took so long; 0: not known. Whether it was unlike those before."""
    cdef bint begins
    if ns == 0:
        return False
    if distance.looks < FIRST_LOOKS:
        distance.line_ns = ns if distance.looks == 0 else min(ns, distance.line_ns)
        distance.looks += 1
        return False
    if is_same_distance(ns, distance.line_ns):
        distance.unlike = 0
        distance.line_ns = (3 * distance.line_ns + ns) // 4
        return False
    if ns > distance.line_ns:
        distance.unlike = max(distance.unlike, 0) + 1
    else:
        distance.unlike = min(distance.unlike, 0) - 1
    begins = distance.unlike == 1 or distance.unlike == -1
    distance.least = ns if begins else min(ns, distance.least)
    if distance.unlike != LOOKS_IF_LONGER and distance.unlike != -LOOKS_IF_SHORTER:
        return True
    distance.moves += 1
    distance.line_ns = distance.least
    distance.unlike = 0
    return False
