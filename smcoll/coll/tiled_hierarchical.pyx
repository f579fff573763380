"""Tiles inside a domain, a tree across domains (Li, Hoefler & Snir 2013, 2.4, figure 8).

Each domain cuts the section into as many tiles as it has ranks; each of them reduces its tile of
all vectors of the domain. Then each tile goes up a tree over the domains, to the *top* one, whose
ranks end with the tiles of the result. Domains may differ in size: where tiles don't match, a rank
reads from all ranks of the domain below whose tiles overlap its own.

============  ====================================  ==============================================
step          posted by                             heard by, before it reads from the poster
============  ====================================  ==============================================
IN            every rank, with all but its own      the other ranks of its domain
              tile in its region
TILE          every rank, with its tile reduced     ranks of the parent domain whose tiles
              over its domain and those below       overlap; from the top domain: whoever wants
                                                    that part of the result
RESULT        ranks of other domains, with their    the other ranks of their domain
              tile of the result
============  ====================================  ==============================================

The result's tile overwrites the partial one: those who read that have done so, since it is part of
the result that has arrived. Sections are the strips of LHS 2: all that is in flight stays in the
caches. Tiles are cut at cache lines, so no line has two writers.
"""

from smcoll.coll.pipeline cimport (
    ALL_STORE, STEP_IN, complete, cut, deliver, heard, plan_call, post, put, reduce_into,
    reduce_operands_into, region, writable,
)
from smcoll.sync.domains cimport index_in_domain, members_of, n_ary_tree_of_domains
from smcoll.sync.team cimport DONE


cdef int allreduce_tiled_hierarchical(Call *call) noexcept nogil:
    """The result comes down in two stages, a tile a rank across and whole inside the domains."""
    plan_domains(call, 0)
    plan_call(call, 5, call.plan.section_bytes, ALL_STORE)
    call.phase[0] = copy_in_for_domain
    call.phase[1] = reduce_in_domain
    call.phase[2] = reduce_across_domains
    call.phase[3] = fetch_own_tile
    call.phase[4] = gather_in_domain
    return complete(call)


cdef int reduce_tiled_hierarchical(Call *call) noexcept nogil:
    """The root's domain is the top one, so the root gathers the tiles from its neighbours."""
    plan_domains(call, call.team.domains.domain_of[call.root])
    plan_call(call, 4, call.plan.section_bytes, ALL_STORE)
    call.phase[0] = copy_in_for_domain
    call.phase[1] = reduce_in_domain
    call.phase[2] = reduce_across_domains
    call.phase[3] = gather_at_root
    return complete(call)


cdef void plan_domains(Call *call, int top) noexcept nogil:
    """The tree over the domains, to domain ``top``, whose ranks hold the result's tiles."""
    call.up.child = call.team.scratch
    n_ary_tree_of_domains(call.team.domains, call.team.domains.domain_of[call.team.rank], top,
                          call.plan.arity, &call.up)
    call.holders = members_of(call.team.domains, top)


cdef inline Holders own_domain(Call *call) noexcept nogil:
    return members_of(call.team.domains, call.team.domains.domain_of[call.team.rank])


cdef void tile_of(Call *call, Section *section, int parts, int part, size_t *begin,
                  size_t *end) noexcept nogil:
    """The bytes of tile ``part`` of ``parts``."""
    begin[0] = cut(section.nbytes, call.element_size, parts, part)
    end[0] = cut(section.nbytes, call.element_size, parts, part + 1)


cdef inline void own_tile(Call *call, Section *section, size_t *begin, size_t *end) noexcept nogil:
    tile_of(call, section, own_domain(call).count,
            index_in_domain(call.team.domains, call.team.rank), begin, end)


cdef int copy_in_for_domain(Call *call, Section *section) noexcept nogil:
    """Copy all but the own tile into the own region: nobody else reads that."""
    cdef size_t begin, end
    cdef char *own = region(call, section, call.team.rank)
    cdef const char *user = call.send + section.offset
    cdef int status = writable(call, section)
    if status != DONE:
        return status
    own_tile(call, section, &begin, &end)
    put(call, section, own, user, begin)
    put(call, section, own + end, user + end, section.nbytes - end)
    post(call, section, STEP_IN)
    return DONE


cdef int reduce_in_domain(Call *call, Section *section) noexcept nogil:
    """The own tile of all vectors of the domain at once, into the own region."""
    cdef Holders members = own_domain(call)
    cdef size_t begin, end
    cdef int i, status
    while section.progress < members.count:
        if members.rank[section.progress] != call.team.rank:
            status = heard(call, section, members.rank[section.progress], STEP_IN)
            if status != DONE:
                return status
        section.progress += 1
    own_tile(call, section, &begin, &end)
    for i in range(members.count):
        call.sources[i] = region(call, section, members.rank[i]) + begin
    call.sources[index_in_domain(call.team.domains, call.team.rank)] = (
        call.send + section.offset + begin)
    reduce_into(call, section, region(call, section, call.team.rank) + begin, members.count,
                end - begin)
    return DONE


cdef int reduce_across_domains(Call *call, Section *section) noexcept nogil:
    """The own tile of the domains below onto ours, one after the other."""
    cdef Holders below
    cdef size_t begin, end
    cdef int status
    own_tile(call, section, &begin, &end)
    while section.progress < call.up.count:
        below = members_of(call.team.domains, call.up.child[section.progress])
        status = heard_holders(call, section, below, begin, end, STEP_TILE)
        if status != DONE:
            return status
        reduce_from(call, section, below, begin, end)
        section.progress += 1
    post(call, section, STEP_TILE)
    return DONE


cdef int heard_holders(Call *call, Section *section, Holders holders, size_t begin, size_t end,
                       int step) noexcept nogil:
    """Have all whose tiles overlap ``begin`` to ``end`` posted ``step``?"""
    cdef size_t first, last
    cdef int i, status
    for i in range(holders.count):
        tile_of(call, section, holders.count, i, &first, &last)
        if max(first, begin) < min(last, end):
            status = heard(call, section, holders.rank[i], step)
            if status != DONE:
                return status
    return DONE


cdef void reduce_from(Call *call, Section *section, Holders below, size_t begin,
                      size_t end) noexcept nogil:
    cdef const void *operands[2]
    cdef char *own = region(call, section, call.team.rank)
    cdef size_t first, last
    cdef int i
    for i in range(below.count):
        tile_of(call, section, below.count, i, &first, &last)
        first = max(first, begin)
        last = min(last, end)
        if first < last:
            operands[0] = own + first
            operands[1] = region(call, section, below.rank[i]) + first
            reduce_operands_into(call, section, own + first, operands, 2, last - first)


cdef void copy_from_holders(Call *call, Section *section, size_t begin, size_t end) noexcept nogil:
    """These bytes of the result into the own region."""
    cdef char *own = region(call, section, call.team.rank)
    cdef size_t first, last
    cdef int i
    for i in range(call.holders.count):
        tile_of(call, section, call.holders.count, i, &first, &last)
        first = max(first, begin)
        last = min(last, end)
        if first < last:
            put(call, section, own + first,
                region(call, section, call.holders.rank[i]) + first, last - first)


cdef int fetch_own_tile(Call *call, Section *section) noexcept nogil:
    """First stage: the own tile of the result from the top domain, for the own one to read."""
    cdef size_t begin, end
    cdef int status
    if call.up.parent < 0:
        return DONE
    own_tile(call, section, &begin, &end)
    status = heard_holders(call, section, call.holders, begin, end, STEP_TILE)
    if status != DONE:
        return status
    copy_from_holders(call, section, begin, end)
    post(call, section, STEP_RESULT)
    return DONE


cdef int gather_in_domain(Call *call, Section *section) noexcept nogil:
    """Second stage: all tiles of the result, from the ranks of the own domain."""
    return gather_tiles(call, section, STEP_TILE if call.up.parent < 0 else STEP_RESULT)


cdef int gather_at_root(Call *call, Section *section) noexcept nogil:
    return gather_tiles(call, section, STEP_TILE) if call.team.rank == call.root else DONE


cdef int gather_tiles(Call *call, Section *section, int step) noexcept nogil:
    cdef Holders members = own_domain(call)
    cdef size_t begin, end
    cdef int mine = index_in_domain(call.team.domains, call.team.rank), i, status
    while section.progress < members.count:
        # The own one first, then the next ranks': so that not all read the same one.
        i = (mine + section.progress) % members.count
        if i != mine:
            status = heard(call, section, members.rank[i], step)
            if status != DONE:
                return status
        tile_of(call, section, members.count, i, &begin, &end)
        deliver(call, section, members.rank[i], section.offset + begin,
                region(call, section, members.rank[i]) + begin, end - begin)
        section.progress += 1
    return DONE
