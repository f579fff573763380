"""Where a team's ranks lie, and trees that follow it (Li, Hoefler & Snir 2013, section 2).

A *domain* is the smallest part of the hardware that counts (an L3 cache, a NUMA node): ranks in it
exchange data fast. Domains lie in larger groups (packages), as deep as the hardware has them. All
trees have edges between two groups only where they need them: one less than there are groups, on
every level, whatever the root. No tree is stored: a rank's neighbours are computed in the call.
"""

from libc.stdlib cimport calloc, free, malloc


cdef class Domains:
    """The groups of a team's ranks.

    ``locations``: for each rank the names of the parts of the hardware that it is bound to, from
    the largest down; ``()`` for an unbound rank. Ranks that are bound less deeply than others of
    their group are a domain of their own there.
    """

    def __cinit__(self, locations):
        cdef int i, rank, domain, size
        locations = [tuple(names) for names in locations]
        size = len(locations)
        if size == 0:
            raise ValueError("no ranks, no domains")
        groups = _groups(locations)
        domains = [number for number, group in enumerate(groups) if not group["children"]]
        self.groups = <Group *> calloc(len(groups), sizeof(Group))
        self.storage = <int *> malloc(4 * size * sizeof(int))
        if self.groups == NULL or self.storage == NULL:
            raise MemoryError()
        cdef int *order = self.storage
        cdef int *position = self.storage + size
        cdef int *domain_of = self.storage + 2 * size
        cdef int *group_of_domain = self.storage + 3 * size
        for i, group in enumerate(groups):
            self.groups[i].parent = group["parent"]
            self.groups[i].position = group["position"]
            self.groups[i].begin = group["begin"]
            self.groups[i].end = group["begin"] + len(group["ranks"])
            self.groups[i].first_child = group["children"][0] if group["children"] else 0
            self.groups[i].children = len(group["children"])
        # Numbered as their ranks lie in `order`.
        domains.sort(key=lambda number: groups[number]["begin"])
        for domain, number in enumerate(domains):
            group_of_domain[domain] = number
            for i, rank in enumerate(groups[number]["ranks"]):
                order[groups[number]["begin"] + i] = rank
                position[rank] = groups[number]["begin"] + i
                domain_of[rank] = domain
        self.view.ranks = size
        self.view.domains = len(domains)
        self.view.group = self.groups
        self.view.order = order
        self.view.position = position
        self.view.domain_of = domain_of
        self.view.domain = group_of_domain

    def __dealloc__(self):
        free(self.groups)
        free(self.storage)

    def __len__(self):
        return self.view.domains

    @property
    def members(self):
        """The ranks of each domain."""
        cdef Holders members
        result = []
        for domain in range(self.view.domains):
            members = members_of(&self.view, domain)
            result.append([members.rank[i] for i in range(members.count)])
        return result

    def tree(self, int rank, int root=0, int arity=2):
        """(parent, children) of ``rank`` in the n-ary tree; the root's parent is -1."""
        self.check(rank, root, arity)
        return self.neighbours(&n_ary_tree, rank, root, arity)

    def tree_of_domains(self, int domain, int top=0, int arity=2):
        """The same between domains, each as one node."""
        if not (0 <= domain < self.view.domains and 0 <= top < self.view.domains and arity >= 2):
            raise ValueError(f"no domain {domain} or {top} of {self.view.domains}, or n < 2")
        return self.neighbours(&n_ary_tree_of_domains, domain, top, arity)

    def stages(self, int rank, int root, int stages):
        """(parent, children) in a broadcast of one or two ``stages``."""
        self.check(rank, root, 2)
        if stages == 1:
            return self.neighbours(&one_stage, rank, root, 2)
        return self.neighbours(&two_stages, rank, root, 2)

    cdef int check(self, int rank, int root, int arity) except -1:
        if not (0 <= rank < self.view.ranks and 0 <= root < self.view.ranks and arity >= 2):
            raise ValueError(f"no rank {rank} or {root} of {self.view.ranks}, or n < 2")
        return 0

    cdef neighbours(self, tree_function function, int node, int root, int arity):
        cdef Neighbours found
        found.child = <int *> malloc(self.view.ranks * sizeof(int))
        if found.child == NULL:
            raise MemoryError()
        try:
            function(&self.view, node, root, arity, &found)
            return found.parent, [found.child[i] for i in range(found.count)]
        finally:
            free(found.child)


def _groups(locations):
    """The tree of groups, as dictionaries, each group's children side by side."""
    groups = [{"parent": -1, "position": 0, "depth": 0, "begin": 0, "ranks": range(len(locations))}]
    for number, group in enumerate(groups):              # which grows
        group["children"] = []
        depth = group["depth"]
        while True:
            inside = {}
            for rank in group["ranks"]:
                inside.setdefault(locations[rank][depth:depth + 1], []).append(rank)
            if len(inside) > 1 or () in inside:
                break
            depth += 1
        if len(inside) == 1:
            group["ranks"] = inside[()]
            continue
        begin = group["begin"]
        for position, ranks in enumerate(inside.values()):
            group["children"].append(len(groups))
            groups.append({"parent": number, "position": position, "depth": depth + 1,
                           "begin": begin, "ranks": ranks})
            begin += len(ranks)
    return groups


# ---------------------------------------------------------------------- trees


cdef inline bint holds(const DomainView *view, int group, int rank) noexcept nogil:
    return view.group[group].begin <= view.position[rank] < view.group[group].end


cdef int leader_of(const DomainView *view, int group, int root) noexcept nogil:
    """Who stands for a group in the level above: the root if it is inside, else the first rank."""
    return root if holds(view, group, root) else view.order[view.group[group].begin]


cdef inline int member(const DomainView *view, int group, int i, int root) noexcept nogil:
    """The i-th node of a group: a rank, or the leader of a group inside."""
    if view.group[group].children == 0:
        return view.order[view.group[group].begin + i]
    return leader_of(view, view.group[group].first_child + i, root)


cdef bint join(const DomainView *view, int group, int mine, int root, int arity,
               Neighbours *out) noexcept nogil:
    """Neighbours of the ``mine``-th of a group's k nodes in an n-ary tree over them (LHS 2.2).

    In each round n nodes are a family: the first is the parent of the n - 1 others and goes on to
    the next round. The nodes are counted from the one that holds the root. Whether ``mine`` is the
    last one left, which goes on in the group above.
    """
    cdef const Group *at = &view.group[group]
    cdef int k = at.children if at.children > 0 else at.end - at.begin
    cdef int first = 0, distance = 1, mine_now, child, j
    if holds(view, group, root):
        if at.children == 0:
            first = view.position[root] - at.begin
        else:
            while not holds(view, at.first_child + first, root):
                first += 1
    mine_now = (mine - first + k) % k
    while distance < k:
        if mine_now // distance % arity != 0:
            mine_now -= mine_now // distance % arity * distance
            out.parent = member(view, group, (mine_now + first) % k, root)
            return False
        for j in range(1, arity):
            child = mine_now + j * distance
            if child >= k:
                break
            out.child[out.count] = member(view, group, (child + first) % k, root)
            out.count += 1
        distance *= arity
    return True


cdef void climb(const DomainView *view, int group, int root, int arity,
                Neighbours *out) noexcept nogil:
    """The leader of ``group`` in the trees of the groups around it, as far as it leads."""
    cdef const Group *at = &view.group[group]
    while at.parent >= 0 and join(view, at.parent, at.position, root, arity, out):
        at = &view.group[at.parent]


cdef void n_ary_tree(const DomainView *view, int rank, int root, int arity,
                     Neighbours *out) noexcept nogil:
    """An n-ary tree in each domain, one over the domains' leaders, and so on up."""
    cdef int group = view.domain[view.domain_of[rank]]
    out.parent = -1
    out.count = 0
    if join(view, group, index_in_domain(view, rank), root, arity, out):
        climb(view, group, root, arity, out)


cdef void n_ary_tree_of_domains(const DomainView *view, int domain, int top, int arity,
                                Neighbours *out) noexcept nogil:
    """The upper part of that tree: over the domains, to domain ``top``."""
    cdef int i, root = view.order[view.group[view.domain[top]].begin]
    out.parent = -1
    out.count = 0
    climb(view, view.domain[domain], root, arity, out)
    if out.parent >= 0:
        out.parent = view.domain_of[out.parent]
    for i in range(out.count):
        out.child[i] = view.domain_of[out.child[i]]


cdef void one_stage_tree(const DomainView *view, int rank, int root,
                         Neighbours *out) noexcept nogil:
    """Everybody is a child of the root (LHS 2.2)."""
    cdef int other
    out.parent = -1 if rank == root else root
    out.count = 0
    if rank == root:
        for other in range(view.ranks):
            if other != root:
                out.child[out.count] = other
                out.count += 1


cdef void two_stage_tree(const DomainView *view, int rank, int root,
                         Neighbours *out) noexcept nogil:
    """The domains' leaders are children of the root, all others of their leader (LHS 2.2)."""
    cdef int domain = view.domain_of[rank], other, i
    cdef int leader = leader_of(view, view.domain[domain], root)
    cdef Holders members = members_of(view, domain)
    out.parent = leader if rank != leader else root
    out.count = 0
    if rank != leader:
        return
    if rank == root:
        out.parent = -1
        for other in range(view.domains):
            if other != domain:
                out.child[out.count] = leader_of(view, view.domain[other], root)
                out.count += 1
    for i in range(members.count):
        if members.rank[i] != rank:
            out.child[out.count] = members.rank[i]
            out.count += 1


# With the arguments of `tree_function`.
cdef void one_stage(const DomainView *view, int rank, int root, int arity,
                    Neighbours *out) noexcept nogil:
    one_stage_tree(view, rank, root, out)


cdef void two_stages(const DomainView *view, int rank, int root, int arity,
                     Neighbours *out) noexcept nogil:
    two_stage_tree(view, rank, root, out)
