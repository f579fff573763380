"""How long messages go to their receivers: staged, or read where they lie.

That is through the kernel in the sender's memory (``cross_memory``), or in its shared heap.

Which is faster depends on the processor, on the kernel, on how far the cores are and on how many
ranks copy at once: so it is measured. The sender says in a message's first cell where it lies, or
sends it in chunks; receivers follow. So each rank may choose for itself, and takes the route by
which its calls took less time. Both have a burst of calls at the beginning, behind one that does
not count, since memory is touched there for the first time; the slower one has another now and
then, the rarer the slower it was. Only who wins two trials in a row is taken. Where the distance of
the cores changes (``distance``), all that was measured is forgotten.

What counts is the time from one call's end to the next one's, not that in the call. A rank's own
calls become shorter where receivers copy for it, and then all take longer; and who reads lines in
their owner's cache makes the owner's next stores to them dearer. The time from end to end is on the
average the same for all ranks, and has both in it. What the program computes in between makes
differences smaller, so that the route stays as it is.

The other ranks' routes are in it, too: where one of two sends staged and the other through the
kernel, one does nearly all the copying. So a rank whose route takes longer now than the other one
did has that measured again at once; ranks in turn, since two that change places gain nothing.

In collectives on arrays in shared heaps in which all ranks exchange where these lie (``direct``),
rank 0 chooses for all, in the same way: so its calls are measured, and it tells the others.

Allgather between two ranks has a third way, through the data regions, which is a little faster than
staged messages are. It has to be agreed on. Nothing is sent for that: after each call both ranks
know whether either block was offered to be read through the kernel. Where that has been so in none
of 32 calls, both go through the data regions for 250 calls, and then send messages again. So they
begin: a program that makes few such calls measures nothing.
"""

from libc.stdint cimport int64_t

cdef enum:
    FIRST_BETWEEN = 4          # bursts between the first trials,
    FIRST_VERDICTS = 2
    AT_LEAST_BETWEEN = 32      # and between later ones
    AT_MOST_BETWEEN = 1000
    # Neighbours disturb a virtual machine for as long as a trial, and what is taken is kept for
    # long: so it has to win twice, with a burst of the one in use in between.
    WINS = 2
    BEFORE_NEXT_WIN = 1
    # Of an Allgather's calls. Longer than the first bursts of staged messages, so that the kernel
    # has had its trial.
    DETOUR_BEHIND = 4 * BURST_CALLS

cdef double FASTER = 0.9       # a route replaces another that takes more than 1 / FASTER as long


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


cdef void begin_choice(RouteChoice *choice, int route) noexcept nogil:
    choice.taken = route
    choice.ended = 0
    choice.moves = 0
    forget(choice)


cdef void add_call(RouteChoice *choice, int64_t now, uint32_t moves, bint in_turn) noexcept nogil:
    """A call by the route ``tried`` has ended ``now``, in ns. ``moves``: how often the distance has
    changed. ``in_turn``: this rank may measure the other route out of the ordinary."""
    cdef int at = <int> choice.calls
    cdef int64_t before = choice.ended, ns = now - before
    choice.ended = now
    if before == 0:
        return
    while at > 0 and choice.sample[at - 1] > ns:
        choice.sample[at] = choice.sample[at - 1]
        at -= 1
    choice.sample[at] = ns
    choice.calls += 1
    if choice.calls == BURST_CALLS:
        end_burst(choice, in_turn)
    if choice.moves != moves:
        forget(choice)
        choice.moves = moves


cdef void forget(RouteChoice *choice) noexcept nogil:
    """The cores are farther from each other, or nearer: both routes are measured anew."""
    choice.tried = choice.taken
    choice.calls = choice.bursts = choice.next_trial = choice.verdicts = choice.wins = 0
    choice.ns[0] = choice.ns[1] = 0


cdef bint is_overtaken(const RouteChoice *choice) noexcept nogil:
    """Whether calls took clearly less time by the other route, when that was measured last."""
    return choice.ns[1 - choice.taken] < FASTER * choice.ns[choice.taken]


cdef void end_burst(RouteChoice *choice, bint in_turn) noexcept nogil:
    cdef double median = choice.sample[(BURST_CALLS - 1) // 2], excess
    cdef bint was_trial = choice.tried != choice.taken
    choice.calls = 0
    choice.bursts += 1
    if choice.bursts == 1:
        return
    if choice.ns[choice.tried] > 0 and not was_trial:
        median = (choice.ns[choice.tried] + median) / 2
    choice.ns[choice.tried] = median
    if choice.ns[1 - choice.tried] == 0:
        choice.tried = 1 - choice.tried
        return
    if was_trial:
        choice.wins = choice.wins + 1 if is_overtaken(choice) else 0
        if choice.wins == WINS:
            choice.taken = choice.tried
            choice.wins = 0
        excess = max(0.0, choice.ns[1 - choice.taken] / choice.ns[choice.taken] - 1)
        choice.verdicts += 1
        choice.next_trial = choice.bursts + FIRST_BETWEEN
        if choice.verdicts > FIRST_VERDICTS:
            choice.next_trial = choice.bursts + AT_LEAST_BETWEEN + <int> min(
                100 * excess, <double> AT_MOST_BETWEEN)
        if choice.wins > 0:
            choice.next_trial = choice.bursts + BEFORE_NEXT_WIN
    choice.tried = choice.taken
    if choice.bursts >= choice.next_trial or (
            in_turn and choice.wins == 0 and is_overtaken(choice)):
        choice.tried = 1 - choice.taken
