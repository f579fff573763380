"""Driving an algorithm over the sections of a vector, several in flight.

An algorithm is a short list of phases, each a function of (call, section) that does its part or
says that it would block. Section k runs its phase j in turn k * stride + j, so that while one
section is reduced, the next is copied in and the one before is copied out.

Why this can't deadlock (docs/protocol.md, rule 12): phase j of a section waits only for earlier
phases of the same section on other ranks, that is for earlier turns, or for the same phase on ranks
that come before it in an order without a cycle; and a section is opened only when the bank that it
recycles holds none of the sections that this rank still has in flight (see plan_call), so what its
bank barrier waits for lies in earlier turns too.
"""

from libc.stdint cimport uint64_t

from smcoll.barrier cimport advance_cursor, release_slot, use_segments
from smcoll.coll.pipeline cimport (
    ALL_STORE, MAX_PHASES, ONE_SEGMENT, OTHER_STORES, ROOT_STORES, SECTION_STEPS, STEP_READ, Call,
    Section, heard_all, occupy, post, round_of,
)
from smcoll.coll.stores cimport UNKNOWN_STORES, add_store_sample, store_class
from smcoll.segment cimport place_in_turn, places_in_turn, whole_lines
from smcoll.sync.team cimport AGAIN, DONE, Team
from smcoll.sync.waiting cimport wait_awaited


cdef void plan_call(Call *call, int phases, size_t section_bytes, int use) noexcept nogil:
    """Cut the vector into sections and reserve the flag values and segments that they use.

    All of it is a function of values that every rank agrees on (protocol rule 3). ``use``: of
    segments, by flags.

    Two ranks that both store change regions when they come back to a place: so each stores where
    it has read before, and reads where it has stored. That is faster with far cores (AMD family
    26; docs/notebook-stores.md). The pass is the same on both ranks, and before a segment is
    written again both have released it (rule 11).
    """
    cdef Team *team = call.team
    cdef int window
    section_bytes -= section_bytes % call.element_size
    if call.nbytes < section_bytes:
        section_bytes = min(section_bytes, whole_lines(max(call.nbytes, call.element_size)))
    call.section_bytes = section_bytes
    occupy(call, section_bytes)
    call.sections = (call.nbytes + section_bytes - 1) // section_bytes
    if call.sections == 0:
        call.sections = 1
    call.tick = team.tick
    team.tick += call.sections * SECTION_STEPS
    call.phases = phases
    call.single_segment = use & ONE_SEGMENT and not call.plan.pipelined
    call.swaps = use & ALL_STORE and team.size == 2
    call.shares = False
    if use & (ROOT_STORES | OTHER_STORES) and team.size == 2:
        share_regions(call, call.root if use & ROOT_STORES else 1 - call.root)
    # Before a bank's first segment is written, all ranks must have released the bank's last round,
    # which ended (banks - 1) * in_use + 1 segments ago. A rank that still had that one in flight
    # would wait for itself: so at most that many sections are in flight.
    window = 1
    if call.plan.pipelined:
        window = min(phases, (team.layout.banks - 1) * team.segments.in_use + 1)
    call.stride = (phases + window - 1) // window
    call.opened = 0
    call.turn = 0
    call.at_phase = 0
    choose_store_class(call)


cdef void share_regions(Call *call, int writer) noexcept nogil:
    """Of two ranks only this one stores. If it was the other one before, it is to store where that
    one has: in rank 0's regions, in a ring that the vector fills once (or more often, if it is
    longer than all segments).

    So each stores where it has read before, as in ``plan_call``. In a longer ring, or one that the
    vector doesn't fill, each rank would come back to its own places; who stores again and again may
    run ahead as far as a long ring goes.
    """
    cdef Team *team = call.team
    cdef int before = team.writer
    cdef uint64_t banks = team.layout.banks
    team.writer = writer
    call.shares = before == 1 - writer and call.sections > 1 and call.sections % banks == 0
    if call.shares:
        use_segments(team, <int> min(<uint64_t> call.plan.segments, call.sections // banks))


cdef inline void choose_store_class(Call *call) noexcept nogil:
    """Whose measurements decide which stores this call uses: those of its size (coll/stores.pyx).

    Its sections are counted there, since a kind of stores is tried in sections of some numbers.
    """
    call.chosen = NULL
    call.sections_before = call.unlike_before = 0
    if has_own_kernels(call):
        call.chosen = store_class(call.team, call.nbytes, call.sections)
    if call.chosen != NULL:
        # Ranks that store nothing count these sections, too: the number is the same on all ranks.
        call.sections_before = call.chosen.sections
        call.unlike_before = call.chosen.unlike
        if not call.chosen.rests:
            call.chosen.sections += call.sections


cdef void open_section(Call *call, Section *section, uint64_t number) noexcept nogil:
    cdef Team *team = call.team
    cdef uint64_t ring = round_of(call)
    cdef uint64_t regions = 2 if call.swaps else 1
    # Where regions are changed or shared, and such calls follow each other, this rank has read
    # last what it writes: nothing has to leave another core's cache.
    cdef uint64_t places = 1 if call.swaps or call.shares else places_in_turn(
        &team.layout, call.extent, team.layout.segment_size, ring, call.nbytes)
    section.number = number
    section.tick = call.tick + number * SECTION_STEPS
    section.offset = number * call.section_bytes
    section.nbytes = min(call.section_bytes, call.nbytes - section.offset)
    section.elements = section.nbytes // call.element_size
    section.progress = 0
    section.is_posted = False
    section.stores = UNKNOWN_STORES
    section.sampled = False
    section.spent = section.stored = 0
    section.slot = team.segments
    # Where in the regions: for the sake of caches only.
    section.place = place_in_turn(section.slot.pass_, places, call.extent)
    section.is_swapped = section.slot.pass_ % regions == 1 or (call.shares and team.writer == 1)
    # The class itself counts: others may have used less of the memory, another algorithm other
    # places.
    section.is_fresh = call.sections_before + number < (
        call.unlike_before + regions * places * ring)
    call.opened = number + 1
    if not call.single_segment or call.opened == call.sections:
        advance_cursor(&team.layout, &team.segments)


cdef void close_section(Call *call, Section *section) noexcept nogil:
    if section.stored > 0:
        add_store_sample(call.chosen, section.stores, section.spent, section.stored)
    if call.single_segment:
        post(call, section, STEP_READ)
        if section.number + 1 < call.sections:
            return
    release_slot(call.team, &section.slot)


cdef inline Section *section_in_turn(Call *call) noexcept nogil:
    """The section whose phase ``call.at_phase`` is due in this turn; NULL: there is none.

    One that begins takes the next segment.
    """
    cdef uint64_t phase = call.at_phase, number
    cdef Section *section
    if call.turn < phase or (call.turn - phase) % call.stride != 0:
        return NULL
    number = (call.turn - phase) // call.stride
    if number >= call.sections:
        return NULL
    section = &call.in_flight[number % MAX_PHASES]
    if number == call.opened:
        open_section(call, section, number)
    return section


cdef inline int run_phase(Call *call, Section *section) noexcept nogil:
    cdef int status
    if (call.single_segment and call.at_phase == 0 and section.number > 0
            and not section.is_posted):
        # One segment for all sections: has every rank read what the section before left there? Its
        # flag values are lower by SECTION_STEPS.
        status = heard_all(call, section, STEP_READ - SECTION_STEPS)
        if status != DONE:
            return status
        section.progress = 0
    status = call.phase[call.at_phase](call, section)
    if status != DONE:
        return status
    section.progress = 0
    if call.at_phase == call.phases - 1:
        close_section(call, section)
    return DONE


cdef int advance(Call *call) noexcept nogil:
    """Go on until the call is complete (DONE) or would block (AGAIN). FAILED codes pass through."""
    cdef uint64_t turns = (call.sections - 1) * call.stride + call.phases
    cdef Section *section
    cdef int status
    while call.turn < turns:
        while call.at_phase < call.phases:
            section = section_in_turn(call)
            if section != NULL:
                status = run_phase(call, section)
                if status != DONE:
                    return status
            call.at_phase += 1
        call.at_phase = 0
        call.turn += 1
    return DONE


cdef int complete(Call *call) noexcept nogil:
    """The blocking form: wait for whatever the call would block on, until it is complete."""
    cdef int status = advance(call)
    while status == AGAIN:
        status = wait_awaited(call.team)
        if status == DONE:
            status = advance(call)
    return status
