"""Reduce in slices, one a rank, which the root gathers (GS 3.2). Along trees: ``tree``."""

from smcoll.coll.pairwise cimport gather_slices, halve
from smcoll.coll.pipeline cimport Section, complete, copy_in, plan_call
from smcoll.coll.tiled cimport (
    copy_in_others, copy_out_at_root, reduce_cyclically_for_root, reduce_own_slice_for_root,
)
from smcoll.sync.team cimport DONE


cdef int reduce_scatter_gather(Call *call) noexcept nogil:
    """Pairwise reduce-scatter, then the root gathers the slices from their owners."""
    plan_call(call, 3, call.plan.section_bytes, True)
    call.phase[0] = copy_in
    call.phase[1] = halve
    call.phase[2] = gather_to_root
    return complete(call)


cdef int gather_to_root(Call *call, Section *section) noexcept nogil:
    return gather_slices(call, section) if call.team.rank == call.root else DONE


cdef int reduce_tiled(Call *call) noexcept nogil:
    """Every rank reduces its slice of all sources at once (LHS 2.4); the root gathers them."""
    plan_call(call, 3, call.plan.section_bytes, False)
    call.phase[0] = copy_in_others
    call.phase[1] = reduce_own_slice_for_root
    call.phase[2] = copy_out_at_root
    return complete(call)


cdef int reduce_tiled_cyclic(Call *call) noexcept nogil:
    """The same, each rank reading the others one after the other (LHS 3.2, after Mamidala)."""
    plan_call(call, 3, call.plan.section_bytes, False)
    call.phase[0] = copy_in_others
    call.phase[1] = reduce_cyclically_for_root
    call.phase[2] = copy_out_at_root
    return complete(call)
