# A part of the hardware that holds ranks: the whole team, a package, a NUMA node, an L3 cache.
cdef struct Group:
    int parent                 # -1 for the whole team
    int position                  # which of its parent's children it is
    int begin, end             # its ranks are order[begin .. end)
    int first_child, children  # the groups directly inside; none: a domain, which has ranks


# Where the ranks lie. Domains are numbered in the order of `order`.
cdef struct DomainView:
    int ranks, domains
    const Group *group         # group[0] is the whole team, children side by side
    const int *order           # the ranks, those of each group side by side, ascending in a domain
    const int *position        # of a rank in `order`
    const int *domain_of       # of a rank
    const int *domain          # group of a domain


# The neighbours of one rank (or one domain) in a tree. `child` has room for all others.
cdef struct Neighbours:
    int parent                 # -1 at the root
    int count
    int *child                 # nearest first


# The ranks that hold the tiles of a result, each one tile, in this order.
cdef struct Holders:
    const int *rank
    int count


# (view, node, root, arity, out)
ctypedef void (*tree_function)(const DomainView *, int, int, int, Neighbours *) noexcept nogil


cdef class Domains:
    cdef DomainView view
    cdef Group *groups
    cdef int *storage

    cdef int check(self, int rank, int root, int arity) except -1
    cdef neighbours(self, tree_function function, int node, int root, int arity)


cdef int leader_of(const DomainView *view, int group, int root) noexcept nogil
cdef void n_ary_tree(const DomainView *view, int rank, int root, int arity,
                     Neighbours *out) noexcept nogil
cdef void n_ary_tree_of_domains(const DomainView *view, int domain, int top, int arity,
                                Neighbours *out) noexcept nogil
cdef void one_stage_tree(const DomainView *view, int rank, int root,
                         Neighbours *out) noexcept nogil
cdef void two_stage_tree(const DomainView *view, int rank, int root,
                         Neighbours *out) noexcept nogil


cdef inline Holders members_of(const DomainView *view, int domain) noexcept nogil:
    cdef const Group *group = &view.group[view.domain[domain]]
    cdef Holders members
    members.rank = view.order + group.begin
    members.count = group.end - group.begin
    return members


# Which member of its domain a rank is.
cdef inline int index_in_domain(const DomainView *view, int rank) noexcept nogil:
    return view.position[rank] - view.group[view.domain[view.domain_of[rank]]].begin
