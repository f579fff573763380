"""On which NUMA nodes pages really lie, as the kernel says (move_pages(2), which also asks)."""

from __future__ import annotations

import ctypes
import os
import platform
from collections import Counter

# libc has no such function, and libnuma, which has, is on few machines.
_MOVE_PAGES = {"x86_64": 279, "aarch64": 239}
_AT_ONCE = 4096


def pages_by_node(address: int, nbytes: int) -> dict[int, int] | None:
    """How many of the pages from ``address`` on lie on each node; None where nobody can say.

    Pages that this process has not touched are left out.
    """
    number = _MOVE_PAGES.get(platform.machine())
    if number is None:
        return None
    page = os.sysconf("SC_PAGESIZE")
    system = ctypes.CDLL(None, use_errno=True).syscall
    counts: Counter[int] = Counter()
    for start in range(address, address + nbytes, page * _AT_ONCE):
        pages = range(start, min(address + nbytes, start + page * _AT_ONCE), page)
        asked = (ctypes.c_void_p * len(pages))(*pages)
        found = (ctypes.c_int * len(pages))()
        if system(number, 0, ctypes.c_ulong(len(pages)), asked, None, found, 0) != 0:
            return None
        counts.update(node for node in found if node >= 0)
    return dict(sorted(counts.items()))
