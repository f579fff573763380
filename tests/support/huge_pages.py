"""Huge pages of shared memory: whether this kernel makes them, and what lies in them."""

from __future__ import annotations

import ctypes
import mmap
import os
import re

HUGE_PAGE = 2 << 20
MAP_FIXED = 0x10
MADV_COLLAPSE = 25


def why_none() -> str | None:
    """Why the kernel makes no huge page of shared memory on request; it is asked for one."""
    descriptor = os.memfd_create("trial")
    os.ftruncate(descriptor, 2 * HUGE_PAGE)
    # Of one huge page's length more than needed, to begin at a boundary.
    space = mmap.mmap(-1, 3 * HUGE_PAGE)
    view = ctypes.c_char.from_buffer(space)
    where = -(-ctypes.addressof(view) // HUGE_PAGE) * HUGE_PAGE
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    assert system.mmap(ctypes.c_void_p(where), ctypes.c_size_t(HUGE_PAGE),
                       mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED,
                       descriptor, ctypes.c_long(0)) == where
    ctypes.memset(where, 1, 1)
    failed = system.madvise(ctypes.c_void_p(where), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)
    reason = os.strerror(ctypes.get_errno()) if failed else None
    del view
    space.close()
    os.close(descriptor)
    return reason


def bytes_in_huge_pages(address: int) -> int:
    """Of the mapping that ``address`` lies in."""
    inside = False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
                begin, end = (int(text, 16) for text in found.groups())
                inside = begin <= address < end
            elif inside and line.startswith("ShmemPmdMapped:"):
                return int(line.split()[1]) << 10
    raise LookupError("no such mapping")
