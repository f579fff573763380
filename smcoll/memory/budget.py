"""The budget of shared memory: each rank may reserve its share, and freeing gives it back."""

from __future__ import annotations

import errno
import threading

from smcoll.topology import node


class Budget:
    """How much this process may reserve in all its communicators. Thread-safe.

    What is claimed is one number; the limit depends on the kind of memory (``Config.memory``).
    """

    def __init__(self):
        # Re-entrant: a garbage collection inside claim() may end a communicator, which gives back.
        self._lock = threading.RLock()
        self._limits = {}
        self._ranks = 1
        self.claimed = 0

    def set_limit(self, node_budget: int, ranks_on_node: int) -> None:
        """``node_budget`` bytes for all ranks of the node.

        0: half of /dev/shm, and a quarter of the machine's memory where no /dev/shm bounds it (as
        much, where /dev/shm is the usual half of the memory).
        """
        of_node = {"shm": node_budget or node.shared_memory()[0] // 2,
                   "memfd": node_budget or node.memory() // 4}
        self._ranks = max(1, ranks_on_node)
        self._limits = {kind: limit // self._ranks for kind, limit in of_node.items()}

    def leaves(self, kind: str) -> int:
        """Bytes of this rank's share that are not claimed yet."""
        return max(0, self._limits[kind] - self.claimed)

    def claim(self, nbytes: int, kind: str = "shm") -> None:
        """Count ``nbytes`` as used. OSError (ENOSPC) beyond the share or the cgroup's limit."""
        with self._lock:
            if kind in self._limits and self.claimed + nbytes > self._limits[kind]:
                raise OSError(errno.ENOSPC, f"this rank's share of the shared memory budget, "
                                            f"{self._limits[kind]} bytes, is used up")
            # The other ranks reserve theirs at the same time: each may take its part of what is
            # left only.
            headroom = node.memory_headroom()
            if nbytes * self._ranks > headroom:
                raise OSError(errno.ENOMEM, f"the cgroup's memory limit leaves {headroom} bytes "
                                            f"to {self._ranks} ranks")
            self.claimed += nbytes

    def give_back(self, nbytes: int) -> None:
        """Count ``nbytes`` as free again."""
        with self._lock:
            self.claimed -= nbytes


budget = Budget()
