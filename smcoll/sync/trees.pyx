"""Communication trees, computed once per communicator and radix.

Graham & Shipman 2008, section 3: radix-n trees in which a parent has n children; the nodes of a
partial leaf level are spread uniformly over the layer of parents. A tree is kept for root 0; for
another root the ranks are rotated (section 3.2).
"""

from libc.stdlib cimport free, malloc


def levels(int ranks, int radix):
    """Sizes of the levels of a radix-``radix`` tree over ``ranks`` ranks: 1, n, n^2, ..., rest."""
    if ranks < 1 or radix < 1:
        raise ValueError(f"a tree needs ranks >= 1 and radix >= 1, not {ranks} and {radix}")
    sizes = []
    width, left = 1, ranks
    while left > 0:
        sizes.append(min(width, left))
        left -= sizes[-1]
        width *= radix
    return sizes


cdef class Tree:
    """Radix-n tree over ``ranks`` ranks, root 0, numbered breadth first."""

    def __cinit__(self, int ranks, int radix):
        cdef int first = 0, width, below, i, begin, end, child
        sizes = levels(ranks, radix)
        self.radix = radix
        self.storage = <int *> malloc(3 * ranks * sizeof(int))
        if self.storage == NULL:
            raise MemoryError()
        cdef int *parent = self.storage
        cdef int *first_child = self.storage + ranks
        cdef int *children = self.storage + 2 * ranks
        parent[0] = -1
        for level in range(len(sizes)):
            width = sizes[level]
            below = sizes[level + 1] if level + 1 < len(sizes) else 0
            for i in range(width):
                # Uniform: parent i of a layer gets the i-th of `width` equal shares of the next.
                begin = <int> ((<long long> i * below) // width)
                end = <int> ((<long long> (i + 1) * below) // width)
                first_child[first + i] = first + width + begin
                children[first + i] = end - begin
                for child in range(first + width + begin, first + width + end):
                    parent[child] = first + i
            first += width
        self.view.ranks = ranks
        self.view.parent = parent
        self.view.first_child = first_child
        self.view.children = children

    def __dealloc__(self):
        free(self.storage)

    def parent_of(self, int rank, int root=0):
        """The parent of ``rank`` in the tree rotated to ``root``; -1 for the root itself."""
        cdef int ranks = self.view.ranks
        cdef int parent = self.view.parent[to_virtual(rank, root, ranks)]
        return -1 if parent < 0 else to_real(parent, root, ranks)

    def children_of(self, int rank, int root=0):
        """The children of ``rank`` in the tree rotated to ``root``."""
        cdef int ranks = self.view.ranks
        cdef int v = to_virtual(rank, root, ranks)
        first = self.view.first_child[v]
        last = first + self.view.children[v]
        return [to_real(child, root, ranks) for child in range(first, last)]
