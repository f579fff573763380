"""The budget of shared memory: each rank may reserve its share, and freeing gives it back."""

from __future__ import annotations

import errno
import threading

from . import node


class Budget:
    """How much this process may reserve in all its communicators.

    ``limit``: the node's budget divided by the ranks on it. Thread-safe.
    """

    def __init__(self):
        # Re-entrant: a garbage collection inside claim() may end a communicator, which gives back.
        self._lock = threading.RLock()
        self._limit = None
        self.claimed = 0

    def set_limit(self, node_budget: int, ranks_on_node: int) -> None:
        """``node_budget`` bytes for all ranks of the node; 0: half of /dev/shm."""
        if node_budget == 0:
            node_budget = node.shared_memory()[0] // 2
        self._limit = node_budget // max(1, ranks_on_node)

    def claim(self, nbytes: int) -> None:
        """Count ``nbytes`` as used. OSError (ENOSPC) beyond the share or the cgroup's limit."""
        with self._lock:
            if self._limit is not None and self.claimed + nbytes > self._limit:
                raise OSError(errno.ENOSPC, f"this rank's share of the shared memory budget, "
                                            f"{self._limit} bytes, is used up")
            headroom = node.memory_headroom()
            if nbytes > headroom:
                raise OSError(errno.ENOMEM, f"the cgroup's memory limit leaves {headroom} bytes")
            self.claimed += nbytes

    def give_back(self, nbytes: int) -> None:
        """Count ``nbytes`` as free again."""
        with self._lock:
            self.claimed -= nbytes


budget = Budget()
