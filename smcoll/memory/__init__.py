"""Memory that is not a segment: the shared heap of each rank, huge pages, the memory budget.

Also reading another process's memory through the kernel. Nothing here waits.
"""
