"""Reduce_scatter as a reduction followed by a scatter in one or two stages (LHS 2.6).

The whole vector is reduced, section by section: up an n-ary tree to rank 0, or in tiles to the
ranks of rank 0's domain. They *hold* the result then. In one stage each rank copies its block from
them; in two stages the leader of each other domain copies all blocks of its domain, and the
domain's ranks copy theirs from it.

============  ====================================  ==============================================
step          posted by                             heard by, before it reads from the poster
============  ====================================  ==============================================
those of      as in ``tree``, ``tiled_hierarchical``: RESULT of rank 0, or TILE of the holders,
the reduction comes before anything is scattered
SCATTERED     the leader of a domain, with its      the other ranks of its domain
              domain's blocks in its region
============  ====================================  ==============================================

What a leader overwrites was read: the result that it copies has come of it. In place, the result
lies at the beginning of the vector: what a section's blocks overwrite belongs to this section or
to earlier ones, which every rank has copied in or reduced by then.
"""

from smcoll.coll.pipeline cimport (
    SOME_STORE, Call, Section, complete, deliver, heard, plan_call, post, region,
)
from smcoll.coll.reduce_scatter cimport Partition
from smcoll.coll.tiled_hierarchical cimport (
    copy_from_holders, copy_in_for_domain, heard_holders, plan_domains, reduce_across_domains,
    reduce_in_domain, tile_of,
)
from smcoll.coll.tree cimport reduce_up, up_n_ary
from smcoll.sync.domains cimport Holders, members_of
from smcoll.sync.team cimport DONE

cdef enum:
    # The holders have the result: tree's RESULT, tiled_hierarchical's TILE.
    STEP_HELD = 2
    STEP_SCATTERED = 4


cdef api int reduce_scatter_tree_one_stage(Call *call) noexcept nogil:
    """Up a tree, then each rank copies its block from rank 0."""
    return reduce_scatter_tree(call, 1)


cdef api int reduce_scatter_tree_two_stage(Call *call) noexcept nogil:
    """Up a tree, then by way of the leaders of domains."""
    return reduce_scatter_tree(call, 2)


cdef api int reduce_scatter_tiled_one_stage(Call *call) noexcept nogil:
    """In tiles, then each rank copies its block from their holders."""
    return reduce_scatter_tiled(call, 1)


cdef api int reduce_scatter_tiled_two_stage(Call *call) noexcept nogil:
    """In tiles, then by way of the leaders of domains."""
    return reduce_scatter_tiled(call, 2)


cdef int reduce_scatter_tree(Call *call, int stages) noexcept nogil:
    """Up an n-ary tree to rank 0, which holds the whole result."""
    cdef int first = 0
    up_n_ary(call, 0)
    call.holders.rank = &first
    call.holders.count = 1
    plan_call(call, 1 + stages, call.plan.section_bytes, SOME_STORE)
    call.phase[0] = reduce_up
    return scatter(call, 1, stages)


cdef int reduce_scatter_tiled(Call *call, int stages) noexcept nogil:
    """In tiles to the ranks of rank 0's domain, each of which holds one."""
    plan_domains(call, call.team.domains.domain_of[0])
    plan_call(call, 3 + stages, call.plan.section_bytes, SOME_STORE)
    call.phase[0] = copy_in_for_domain
    call.phase[1] = reduce_in_domain
    call.phase[2] = reduce_across_domains
    return scatter(call, 3, stages)


cdef inline int scatter(Call *call, int phase, int stages) noexcept nogil:
    if stages == 1:
        call.phase[phase] = take_from_holders
    else:
        call.phase[phase] = fetch_for_domain
        call.phase[phase + 1] = take_in_domain
    return complete(call)


cdef inline bint with_the_result(Call *call) noexcept nogil:
    """Whether this rank is in the domain that has the result anyway."""
    cdef const int *domain_of = call.team.domains.domain_of
    return domain_of[call.team.rank] == domain_of[call.holders.rank[0]]


cdef inline void part_in_section(Call *call, Section *section, int rank, size_t *begin,
                                 size_t *end) noexcept nogil:
    """What of the block of ``rank`` lies in this section, in bytes from the section's start."""
    cdef const Partition *blocks = <const Partition *> call.details
    begin[0] = max(blocks.begin[rank], section.offset) - section.offset
    end[0] = min(blocks.begin[rank + 1], section.offset + section.nbytes)
    end[0] = max(end[0], section.offset + begin[0]) - section.offset


cdef inline void give_to_user(Call *call, Section *section, int holder, size_t begin,
                              size_t end) noexcept nogil:
    cdef const Partition *blocks = <const Partition *> call.details
    if begin < end:
        deliver(call, section, holder, section.offset + begin - blocks.begin[call.team.rank],
                region(call, section, holder) + begin, end - begin)


cdef int take_from_holders(Call *call, Section *section) noexcept nogil:
    """The own block, from whoever holds it."""
    cdef size_t begin, end, first, last
    cdef int i, status
    part_in_section(call, section, call.team.rank, &begin, &end)
    status = heard_holders(call, section, call.holders, begin, end, STEP_HELD)
    if status != DONE:
        return status
    for i in range(call.holders.count):
        tile_of(call, section, call.holders.count, i, &first, &last)
        give_to_user(call, section, call.holders.rank[i], max(first, begin), min(last, end))
    return DONE


cdef int fetch_for_domain(Call *call, Section *section) noexcept nogil:
    """A leader copies the blocks of all ranks of its domain into its own region."""
    cdef int domain = call.team.domains.domain_of[call.team.rank]
    cdef Holders members = members_of(call.team.domains, domain)
    cdef size_t begin, end
    cdef int status
    if with_the_result(call) or members.rank[0] != call.team.rank:
        return DONE
    while section.progress < members.count:
        part_in_section(call, section, members.rank[section.progress], &begin, &end)
        status = heard_holders(call, section, call.holders, begin, end, STEP_HELD)
        if status != DONE:
            return status
        copy_from_holders(call, section, begin, end)
        section.progress += 1
    post(call, section, STEP_SCATTERED)
    return DONE


cdef int take_in_domain(Call *call, Section *section) noexcept nogil:
    """The own block, from the domain's leader."""
    cdef int leader, status
    cdef size_t begin, end
    if with_the_result(call):
        return take_from_holders(call, section)
    leader = members_of(call.team.domains, call.team.domains.domain_of[call.team.rank]).rank[0]
    if leader != call.team.rank:
        status = heard(call, section, leader, STEP_SCATTERED)
        if status != DONE:
            return status
    part_in_section(call, section, call.team.rank, &begin, &end)
    give_to_user(call, section, leader, begin, end)
    return DONE
