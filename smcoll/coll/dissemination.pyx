"""Allreduce by dissemination, laid out along the domains (Li, Hoefler & Snir 2013, 2.3).

In step i a rank combines its data with those of the rank 2^i before it: first inside its domain,
until each of the ranks that take part has the domain's sum, then with the same rank of the domain
2^i before its own. Both counts must be powers of two; excess ranks give their data to one of their
domain before and copy the result from it after (figures 5 and 6, of the long version 6 and 7). Of
domains beyond a power of two each taking-part rank gives to, and gets from, the same rank of
another domain.

Ranks combine in different orders, so **floating-point results differ in their last bits from rank
to rank**: only used where it is asked for by name.

A section takes half a region, and the halves alternate: version v of a rank's data lies in half
v & 1.

============  ====================================  ==============================================
step          posted by                             heard by, before it reads from the poster
============  ====================================  ==============================================
IN            excess ranks, with their data         the rank of their domain that takes them
READY + v     ranks that take part, with version v  the rank that combines it with its own; the
                                                    last version: excess ranks
RESULT        of an excess domain, with the result  excess ranks of their domain
============  ====================================  ==============================================

Version v + 1 overwrites version v - 1, whose one reader has posted READY + v by then: it is heard
before. The result in an excess domain overwrites the version that was given away, and is made of.
"""

from smcoll.coll.pipeline cimport (
    ALL_STORE, STEP_IN, Call, Section, combine, complete, deliver, half_of_region, heard,
    occupy_two_halves, plan_call, post, put, writable,
)
from smcoll.sync.domains cimport Domains, DomainView, Holders, index_in_domain, members_of
from smcoll.sync.team cimport DONE

cdef enum:
    # From STEP_IN on.
    STEP_READY = 2             # + version: at most 2 + 31 steps
    STEP_RESULT = 40


# In each domain `inside` ranks take part, in `across` domains; both are powers of two. The others
# are excess: they give their data away before and get the result after.
cdef struct Roles:
    int inside, across
    int steps_inside, steps_across


cdef void deal_roles(const DomainView *view, Roles *roles) noexcept nogil:
    """As many ranks of each domain as the smallest one has, and domains, down to powers of two."""
    cdef int domain, smallest = view.ranks
    for domain in range(view.domains):
        smallest = min(smallest, members_of(view, domain).count)
    roles.inside = roles.across = 1
    roles.steps_inside = roles.steps_across = 0
    while roles.inside * 2 <= smallest:
        roles.inside *= 2
        roles.steps_inside += 1
    while roles.across * 2 <= view.domains:
        roles.across *= 2
        roles.steps_across += 1


cdef inline int before(const DomainView *view, const Roles *roles, int rank, int step,
                       int sign) noexcept nogil:
    """The rank 2^step places before (``sign`` 1) or behind (-1) ``rank``."""
    cdef int domain = view.domain_of[rank], i = index_in_domain(view, rank)
    if step < roles.steps_inside:
        i = (i - sign * (1 << step) + roles.inside) % roles.inside
    else:
        domain -= sign * (1 << (step - roles.steps_inside))
        domain = (domain + roles.across) % roles.across
    return members_of(view, domain).rank[i]


def source(Domains domains, int rank, int step):
    """Whose data ``rank`` combines with its own in ``step``; None: it takes no part in it.

    Steps inside the domains come first. For excess ranks, and behind the last step, None.
    """
    cdef Roles roles
    deal_roles(&domains.view, &roles)
    steps = roles.steps_inside
    if index_in_domain(&domains.view, rank) >= roles.inside:
        return None
    if domains.view.domain_of[rank] < roles.across:
        steps += roles.steps_across
    return before(&domains.view, &roles, rank, step, 1) if step < steps else None


cdef api int allreduce_dissemination(Call *call) noexcept nogil:
    """Take the excess ranks' data, disseminate, give them the result."""
    cdef Roles roles
    deal_roles(call.team.domains, &roles)
    call.details = <void *> &roles
    plan_call(call, 3, call.plan.section_bytes // 2, ALL_STORE)
    occupy_two_halves(call)
    call.phase[0] = copy_in_or_give
    call.phase[1] = disseminate
    call.phase[2] = copy_result_out
    return complete(call)


cdef inline char *version_of(Call *call, Section *section, int rank, int version) noexcept nogil:
    return half_of_region(call, section, rank, version)


cdef inline bint takes_part(Call *call) noexcept nogil:
    cdef const Roles *roles = <const Roles *> call.details
    return index_in_domain(call.team.domains, call.team.rank) < roles.inside


cdef inline bint in_excess_domain(Call *call) noexcept nogil:
    cdef const Roles *roles = <const Roles *> call.details
    return call.team.domains.domain_of[call.team.rank] >= roles.across


cdef int copy_in_or_give(Call *call, Section *section) noexcept nogil:
    """Version 0; an excess rank's is ready for the rank that takes it."""
    cdef int status = writable(call, section)
    if status != DONE:
        return status
    put(call, section, version_of(call, section, call.team.rank, 0), call.send + section.offset,
        section.nbytes)
    if not takes_part(call):
        post(call, section, STEP_IN)
    return DONE


cdef int disseminate(Call *call, Section *section) noexcept nogil:
    """What excess ranks of the domain have, the steps inside, the excess domain's sum, the rest."""
    cdef const Roles *roles = <const Roles *> call.details
    cdef int steps = roles.steps_inside, step, status
    if not takes_part(call):
        return DONE
    if not in_excess_domain(call):
        steps += roles.steps_across
    # progress: 2 v before version v is posted, 2 v + 1 behind that.
    while True:
        step = section.progress // 2
        if section.progress % 2 == 0:
            status = take_from_excess(call, section, step)
            if status != DONE:
                return status
            post(call, section, STEP_READY + step)
            section.progress += 1
        if step == steps:
            return DONE
        status = next_version(call, section, step)
        if status != DONE:
            return status
        section.progress += 1


cdef int take_from_excess(Call *call, Section *section, int version) noexcept nogil:
    """What comes into a version before anybody reads it. All of it is there, or nothing is done."""
    cdef const Roles *roles = <const Roles *> call.details
    cdef bint last_inside = version == roles.steps_inside and not in_excess_domain(call)
    cdef int status = DONE
    if version == 0:
        status = heard_excess_ranks(call, section)
    if status == DONE and last_inside:
        status = heard_excess_domain(call, section)
    if status != DONE:
        return status
    if version == 0:
        take_from_excess_ranks(call, section)
    if last_inside:
        take_from_excess_domain(call, section)
    return DONE


cdef inline Holders own_domain(Call *call) noexcept nogil:
    return members_of(call.team.domains, call.team.domains.domain_of[call.team.rank])


cdef int heard_excess_ranks(Call *call, Section *section) noexcept nogil:
    cdef const Roles *roles = <const Roles *> call.details
    cdef Holders members = own_domain(call)
    cdef int i = index_in_domain(call.team.domains, call.team.rank) + roles.inside, status
    while i < members.count:
        status = heard(call, section, members.rank[i], STEP_IN)
        if status != DONE:
            return status
        i += roles.inside
    return DONE


cdef void take_from_excess_ranks(Call *call, Section *section) noexcept nogil:
    cdef const Roles *roles = <const Roles *> call.details
    cdef Holders members = own_domain(call)
    cdef int i = index_in_domain(call.team.domains, call.team.rank) + roles.inside
    cdef char *own = version_of(call, section, call.team.rank, 0)
    while i < members.count:
        combine(call, section, own, own, version_of(call, section, members.rank[i], 0), 0,
                section.elements)
        i += roles.inside


cdef int giver(Call *call) noexcept nogil:
    """The rank in the excess domain that gives its domain's sum to us; -1: there is none."""
    cdef const Roles *roles = <const Roles *> call.details
    cdef int domain = call.team.domains.domain_of[call.team.rank] + roles.across
    if domain >= call.team.domains.domains:
        return -1
    return members_of(call.team.domains, domain).rank[
        index_in_domain(call.team.domains, call.team.rank)]


cdef int heard_excess_domain(Call *call, Section *section) noexcept nogil:
    cdef const Roles *roles = <const Roles *> call.details
    cdef int other = giver(call)
    return DONE if other < 0 else heard(call, section, other, STEP_READY + roles.steps_inside)


cdef void take_from_excess_domain(Call *call, Section *section) noexcept nogil:
    cdef const Roles *roles = <const Roles *> call.details
    cdef char *own = version_of(call, section, call.team.rank, roles.steps_inside)
    cdef int other = giver(call)
    if other >= 0:
        combine(call, section, own, own, version_of(call, section, other, roles.steps_inside), 0,
                section.elements)


cdef int next_version(Call *call, Section *section, int step) noexcept nogil:
    """Version ``step`` + 1: ours and that of the rank 2^step before us."""
    cdef const Roles *roles = <const Roles *> call.details
    cdef int rank = call.team.rank
    cdef int other = before(call.team.domains, roles, rank, step, 1)
    cdef int status = heard(call, section, other, STEP_READY + step)
    if status == DONE and step > 0:
        # Its reader is through with the version that the new one overwrites.
        status = heard(call, section, before(call.team.domains, roles, rank, step - 1, -1),
                       STEP_READY + step)
    if status != DONE:
        return status
    combine(call, section, version_of(call, section, rank, step + 1),
            version_of(call, section, other, step), version_of(call, section, rank, step), 0,
            section.elements)
    return DONE


cdef int copy_result_out(Call *call, Section *section) noexcept nogil:
    """From the own last version, or from whoever took what we gave."""
    cdef const Roles *roles = <const Roles *> call.details
    cdef int rank = call.team.rank, status
    cdef int last = roles.steps_inside + roles.steps_across
    cdef int mine = index_in_domain(call.team.domains, rank)
    cdef int domain = call.team.domains.domain_of[rank]
    cdef int source = members_of(call.team.domains, domain).rank[mine % roles.inside]
    cdef char *own
    if not in_excess_domain(call):
        if source != rank:
            status = heard(call, section, source, STEP_READY + last)
            if status != DONE:
                return status
        deliver(call, section, source, section.offset, version_of(call, section, source, last),
                section.nbytes)
        return DONE
    if source != rank:
        status = heard(call, section, source, STEP_RESULT)
        if status != DONE:
            return status
        deliver(call, section, source, section.offset,
                version_of(call, section, source, roles.steps_inside), section.nbytes)
        return DONE
    source = members_of(call.team.domains, domain - roles.across).rank[mine]
    status = heard(call, section, source, STEP_READY + last)
    if status != DONE:
        return status
    own = version_of(call, section, rank, roles.steps_inside)
    put(call, section, own, version_of(call, section, source, last), section.nbytes)
    post(call, section, STEP_RESULT)
    deliver(call, section, rank, section.offset, own, section.nbytes)
    return DONE
