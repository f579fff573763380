"""How long messages go to their receivers: staged, or read where they lie.

That is through the kernel in the sender's memory (``cross_memory``), or in its shared heap.

Which is faster depends on the processor, on the kernel, on how far the cores are and on how many
ranks copy at once: so it is measured. (Not in an Alltoall of more than two that share cores:
``select.measured_routes``.) The sender says in a message's first cell where it lies, or sends it in
chunks; receivers follow. So each rank may choose for itself, and takes the route by which its calls
took less time. Both have a burst of calls at the beginning, behind one that does not count, since
memory is touched there for the first time; the slower one has another now and then, the rarer the
slower it was. Only who wins two trials in a row is taken, or more where it wins by less. Where the
distance of the cores changes (``distance``), what was measured at the one before is kept for its
return, and both routes are measured anew.

What counts is the time from one call's end to the next one's, not that in the call. A rank's own
calls become shorter where receivers copy for it, and then all take longer; and who reads lines in
their owner's cache makes the owner's next stores to them dearer. The time from end to end is on the
average the same for all ranks, and has both in it. What the program computes in between makes
differences smaller, so that the route stays as it is.

The other ranks' routes are in it, too: where one of two sends staged and the other through the
kernel, one does nearly all the copying, and it takes longer than either route on both. So ranks try
at the same time: bursts are counted from the first call on, and the numbers of those that try are
multiples of a power of two, from 4 to 1024. (Ranks that hand out messages of other sizes count
other calls, and try apart.) A program may have calls of several kinds in one loop, and each would
see the others' trials in its own time: so each collective and size has another phase. But a rank
whose route takes longer now than the other one did has that measured again at once; ranks in turn,
since two that change places gain nothing.

In collectives on arrays in shared heaps in which all ranks exchange where these lie (``direct``),
rank 0 chooses for all, in the same way: so its calls are measured, and it tells the others.

Whether the root of a Gather writes a long result around the caches is found in the same way, by the
time between the calls in which it is the root. Around them it saves what the caches would have to
give up for it; but the program reads it from memory then. Which counts for more depends on who else
uses these caches: other ranks that are roots, too, and other processes.

Allgather between two ranks has a third way, through the data regions, which is a little faster than
staged messages are. It has to be agreed on. Nothing is sent for that: after each call both ranks
know whether either block was offered to be read through the kernel. Where that has been so in none
of 32 calls, both go through the data regions for 250 calls, and then send messages again. So they
begin: a program that makes few such calls measures nothing.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport malloc

from smcoll.base.atomics cimport monotonic_ns
from smcoll.coll.distance cimport is_same_distance, look_at_distance

cdef enum:
    FIRST_TRIAL = 2            # number of a burst: behind the one that does not count, and one more
    # Trials begin with bursts whose number is a multiple of these: the first ones, ...
    FIRST_BETWEEN = 4
    FIRST_VERDICTS = 2
    AT_LEAST_BETWEEN = 32      # ... later ones, or of this times a power of two,
    AT_MOST_BETWEEN = 1024
    # ... and where the distance has changed: ranks see that one by one. Times a power of two where
    # such changes have left the route in use.
    BETWEEN_MOVES = 8
    MOST_DOUBLED = 3
    # Bursts by which the phases of neighbouring sizes and collectives differ: odd, so that they
    # differ by each power of two.
    BETWEEN_SIZES = 11
    BETWEEN_COLLECTIVES = 5
    # Between trials that a route wins in a row: one of the route in use.
    BEFORE_NEXT_WIN = 1
    # A trial ends with so many of its calls where the shortest of them has LOST it.
    ENOUGH_TO_LOSE = 3
    # Of an Allgather's calls. Longer than the first bursts of staged messages, so that the kernel
    # has had its trial.
    DETOUR_BEHIND = 4 * BURST_CALLS

# What a route gains in a trial, as a part of the time by the one in use: clearly faster from here
# on; with less than the second the trial is not won.
cdef double CLEAR_GAIN = 0.1
cdef double LEAST_GAIN = 0.02
# A route is taken once its gains in a row add up to this: twice a tenth, four times a twentieth.
# Neighbours disturb a virtual machine for as long as a trial, and what is taken is kept for long:
# so no single trial counts for more than a tenth.
cdef double ENOUGH_GAINED = 2 * CLEAR_GAIN
cdef double LOST = 1.25    # times as long as by the route in use


cdef int route_class(size_t nbytes) noexcept nogil:
    cdef int number = 0
    nbytes //= SMALLEST_ROUTED
    while nbytes > 1 and number < ROUTE_CLASSES - 1:
        nbytes //= 2
        number += 1
    return number


cdef void end_messages(Detour *detour, bint staged) noexcept nogil:
    """Behind a call by messages. ``staged``: neither block was to be read through the kernel."""
    detour.staged = detour.staged + 1 if staged else 0
    if detour.staged == DETOUR_BEHIND:
        detour.staged = 0
        detour.left = DETOUR_CALLS


cdef inline uint32_t phase_of(int number, int size_class) noexcept nogil:
    return BETWEEN_COLLECTIVES * number + BETWEEN_SIZES * size_class


cdef RouteChoice *new_choices(int first, int number) except NULL:
    cdef RouteChoice *choices = <RouteChoice *> malloc(ROUTE_CLASSES * sizeof(RouteChoice))
    cdef int i
    if choices == NULL:
        raise MemoryError()
    for i in range(ROUTE_CLASSES):
        begin_choice(&choices[i], first, phase_of(number, i))
    return choices


cdef void begin_long_by(RouteChoice *choices, size_t nbytes, int route) noexcept nogil:
    """From ``nbytes`` on calls begin with another route than shorter ones do."""
    cdef int i
    for i in range(route_class(nbytes), ROUTE_CLASSES):
        begin_choice(&choices[i], route, choices[i].phase)


cdef tuple describe_choice(const RouteChoice *choice, tuple names):
    cdef const Finding *found = &choice.found
    if found.ns[0] == 0 or found.ns[1] == 0:
        return names[found.taken], "not both are measured yet"
    return names[found.taken], "us from call to call: " + ", ".join(
        f"{names[route]} {found.ns[route] / 1000:.1f}" for route in range(ROUTES))


cdef void begin_choice(RouteChoice *choice, int route, uint32_t phase) noexcept nogil:
    choice.found.taken = choice.tried = route
    choice.phase = phase
    choice.ended = 0
    choice.ends = 0
    choice.calls = choice.verdicts = choice.alarms = 0
    choice.gained = 0
    choice.found.ns[0] = choice.found.ns[1] = 0
    choice.next_trial = FIRST_TRIAL + phase % 2
    choice.distance.moves = choice.distance.looks = choice.distance.unlike = 0
    choice.distance.line_ns = choice.distance.least = 0
    choice.line_ns_before = 0


cdef void begin_by(RouteChoice *choice, int route) noexcept nogil:
    """Unless calls were measured already."""
    if choice.ends <= 1:
        choice.found.taken = choice.tried = route


cdef void note_call(Team *team, RouteChoice *choice, bint alone, bint together) noexcept nogil:
    """A call by the route ``tried`` has ended.

    ``alone``: no other rank measures it; ``together``: others hand out messages in it, and try for
    themselves.
    """
    cdef uint32_t moves = choice.distance.moves
    cdef int64_t line_ns = choice.distance.line_ns
    # Ranks count such calls alike, so they are in turn at different ones.
    cdef bint in_turn = alone or (
        choice.ends // TURN_CALLS % <uint64_t> team.size == <uint64_t> team.rank)
    add_call(choice, monotonic_ns(), in_turn, together)
    # Where ranks share cores, the line comes from who was last on this one.
    if (choice.calls == 0 or choice.distance.unlike != 0) and not team.oversubscribed:
        look_at_distance(team, &choice.distance)
        if choice.distance.moves != moves:
            change_distance(choice, line_ns)


cdef void add_call(RouteChoice *choice, int64_t now, bint in_turn, bint together) noexcept nogil:
    """A call by the route ``tried`` has ended ``now``, in ns.

    ``in_turn``: this rank may measure the other route out of the ordinary; ``together``: see
    ``note_call``.
    """
    cdef int at = <int> choice.calls
    cdef int64_t before = choice.ended, ns = now - before
    choice.ended = now
    choice.ends += 1
    if before > 0:
        while at > 0 and choice.sample[at - 1] > ns:
            choice.sample[at] = choice.sample[at - 1]
            at -= 1
        choice.sample[at] = ns
        choice.calls += 1
        # (Together, the first calls of a trial may be mixed ones: the others begin some later.)
        if choice.calls == ENOUGH_TO_LOSE and not together and is_lost(choice):
            # The burst's other calls go by the route in use, and don't count.
            choice.found.ns[choice.tried] = choice.sample[ENOUGH_TO_LOSE // 2]
            end_trial(choice, choice.ends // BURST_CALLS + 1)
            choice.tried = choice.found.taken
            choice.calls = 0
    if choice.ends % BURST_CALLS == 0:
        # Incomplete is the first one, one in which a trial was lost or the distance changed.
        if choice.calls == BURST_CALLS:
            end_burst(choice, in_turn)
        choice.calls = 0


cdef void change_distance(RouteChoice *choice, int64_t line_ns) noexcept nogil:
    """The cores are farther from each other than at ``line_ns``, or nearer: both routes are
    measured anew, later where both are known from this distance."""
    cdef Finding left = choice.found
    cdef uint32_t doubled = min(choice.alarms, <uint32_t> MOST_DOUBLED)
    if is_same_distance(choice.line_ns_before, choice.distance.line_ns):
        choice.found = choice.before
        if choice.found.ns[0] > 0 and choice.found.ns[1] > 0:
            doubled = MOST_DOUBLED
    else:
        choice.found.ns[0] = choice.found.ns[1] = 0
        choice.verdicts = FIRST_VERDICTS
    choice.line_ns_before = line_ns
    choice.before = left
    choice.tried = choice.found.taken
    choice.calls = 0
    choice.gained = 0
    choice.next_trial = burst_behind(choice, choice.ends // BURST_CALLS + 1,
                                     BETWEEN_MOVES << doubled)
    choice.alarms += 1


cdef inline uint64_t burst_behind(const RouteChoice *choice, uint64_t burst,
                                  uint64_t between) noexcept nogil:
    """The number of the first one behind this that, but for the phase, is such a multiple."""
    return ((burst + choice.phase) // between + 1) * between - choice.phase


cdef bint is_overtaken(const RouteChoice *choice) noexcept nogil:
    """Whether calls took clearly less time by the other route, when that was measured last."""
    cdef const Finding *found = &choice.found
    return found.ns[1 - found.taken] > 0 and gain(found) > CLEAR_GAIN


cdef inline double gain(const Finding *found) noexcept nogil:
    """By the other route; both are known."""
    return 1 - found.ns[1 - found.taken] / found.ns[found.taken]


cdef inline bint is_lost(const RouteChoice *choice) noexcept nogil:
    """Whether all calls of this trial so far have taken much longer than by the route in use."""
    cdef const Finding *found = &choice.found
    return (choice.tried != found.taken and found.ns[found.taken] > 0
            and choice.sample[0] > LOST * found.ns[found.taken])


cdef void end_burst(RouteChoice *choice, bint in_turn) noexcept nogil:
    cdef double median = choice.sample[(BURST_CALLS - 1) // 2]
    cdef uint64_t burst = choice.ends // BURST_CALLS       # the next one's number
    cdef Finding *found = &choice.found
    if choice.tried != found.taken:
        found.ns[choice.tried] = median
        end_trial(choice, burst)
    elif found.ns[found.taken] > 0:
        found.ns[found.taken] = (found.ns[found.taken] + median) / 2
    else:
        found.ns[found.taken] = median
    choice.tried = found.taken
    if burst >= choice.next_trial or (in_turn and choice.gained == 0 and is_overtaken(choice)):
        choice.tried = 1 - found.taken


cdef void end_trial(RouteChoice *choice, uint64_t burst) noexcept nogil:
    """Which route is taken from ``burst`` on, and when the other one is tried again."""
    cdef uint64_t between = FIRST_BETWEEN
    cdef Finding *found = &choice.found
    cdef double excess
    if gain(found) < LEAST_GAIN:
        choice.gained = 0
    else:
        choice.gained += min(gain(found), CLEAR_GAIN)
    if choice.gained >= ENOUGH_GAINED:
        found.taken = choice.tried
        choice.gained = 0
        choice.alarms = 0
    choice.verdicts += 1
    if choice.gained > 0:
        choice.next_trial = burst + BEFORE_NEXT_WIN
        return
    if choice.verdicts > FIRST_VERDICTS:
        between = AT_LEAST_BETWEEN
        excess = found.ns[1 - found.taken] / found.ns[found.taken] - 1
        while between < AT_MOST_BETWEEN and between < AT_LEAST_BETWEEN + 100 * excess:
            between *= 2
    choice.next_trial = burst_behind(choice, burst, between)
