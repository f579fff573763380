cdef struct TreeView:
    # For the tree rooted at 0. Children are numbered contiguously (breadth first).
    int ranks
    const int *parent
    const int *first_child
    const int *children


cdef class Tree:
    cdef TreeView view
    cdef int *storage
    cdef readonly int radix


cdef inline int to_virtual(int rank, int root, int ranks) noexcept nogil:
    cdef int v = rank - root
    return v + ranks if v < 0 else v


cdef inline int to_real(int v, int root, int ranks) noexcept nogil:
    cdef int rank = v + root
    return rank - ranks if rank >= ranks else rank
