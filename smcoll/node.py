"""This node: who it is, which CPUs and how much memory this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = "/dev/shm"


def identity() -> str:
    """Equal on two processes that run under one kernel with one host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    return f"{os.uname().nodename} {boot}"


def allowed_cpus() -> list[int]:
    """The CPUs in this process's affinity mask."""
    return sorted(psutil.Process().cpu_affinity())


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.lstrip("-").isdigit() else None


def _own_cgroups() -> list[Path]:
    """The folders of this process's cgroup and its parents that can be seen (v1 and v2)."""
    folders = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(",") or [""]:
            folder = (CGROUP / controller / path.lstrip("/")).resolve()
            while CGROUP in (folder, *folder.parents):
                folders.append(folder)
                folder = folder.parent
    return folders or [CGROUP]


def cpu_quota() -> float:
    """CPUs that the cgroup's quota allows (v1 and v2); infinite without one."""
    quota = math.inf
    for folder in _own_cgroups():
        try:
            limit, period = (folder / "cpu.max").read_text().split()
            if limit != "max":
                quota = min(quota, int(limit) / int(period))
        except (OSError, ValueError):
            pass
        limit = _read_number(folder / "cpu.cfs_quota_us")
        period = _read_number(folder / "cpu.cfs_period_us")
        if limit is not None and period and limit > 0:
            quota = min(quota, limit / period)
    return quota


def ranks_of_launcher() -> int:
    """Ranks of the job on this node, as the launcher says in the environment; 0: it doesn't."""
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def memory_headroom() -> float:
    """Bytes until this process's cgroup (v1 and v2) reaches its limit; infinite without one.

    Looked at before memory is reserved: beyond the limit the kernel kills instead of failing.
    """
    headroom = math.inf
    for folder in _own_cgroups():
        for limit_name, usage_name in (("memory.max", "memory.current"),
                                       ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit = _read_number(folder / limit_name)
            usage = _read_number(folder / usage_name)
            if limit is not None and usage is not None and 0 < limit < 1 << 60:
                headroom = min(headroom, limit - usage)
    return headroom


def shared_memory() -> tuple[int, int]:
    """(total, free) bytes of /dev/shm; (0, 0) where there is none."""
    try:
        facts = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0, 0
    return facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize


def outnumbered(masks: list[frozenset[int]], quota: float, others: int = 0) -> bool:
    """Whether ranks with these affinity masks outnumber the CPUs that they may use.

    ``others``: processes of the same job beside them, on the same CPUs as far as we know.
    """
    union = frozenset().union(*masks)
    if len(masks) + others > min(len(union), quota):
        return True
    # Ranks bound to few CPUs crowd those even where others are free.
    return any(sum(mask <= crowd for mask in masks) > len(crowd) for crowd in {*masks, union})
