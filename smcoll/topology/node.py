"""This node: who it is, which CPUs and how much memory this process may use."""

from __future__ import annotations

import functools
import math
import os
import platform
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = "/dev/shm"


def identity() -> str:
    """Equal on two processes that run under one kernel with one host name.

    ``SMCOLL_NODE`` tells further nodes apart: containers that look alike and share no memory, or
    pretended nodes in tests. OSError where the kernel's number can't be read: without it two nodes
    might look the same.
    """
    return f"{os.uname().nodename} {_boot_id()} {os.environ.get('SMCOLL_NODE', '')}".rstrip()


@functools.cache
def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    # In a sandbox without it: the host name alone has to tell.
    return path.read_text().strip() if path.exists() else "unknown"


def processor() -> str:
    """The processor's name as /proc/cpuinfo has it, else the kind of machine."""
    return _first_cpu().get("model name", platform.machine())


def processor_numbers() -> dict[str, int]:
    """Its family, model and stepping: {} where /proc/cpuinfo has none."""
    found = _first_cpu()
    names = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    return {name: int(found[key]) for name, key in names.items() if found.get(key, "").isdigit()}


@functools.cache
def _first_cpu() -> dict[str, str]:
    """What /proc/cpuinfo says of the first CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    return {name.strip(): value.strip() for name, _, value in (
        line.partition(":") for line in lines)}


def allowed_cpus() -> list[int]:
    """The CPUs in this process's affinity mask."""
    # Not by way of /proc, which may be that of another PID namespace.
    return sorted(os.sched_getaffinity(0))


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.lstrip("-").isdigit() else None


def _read_field(path: Path, name: str) -> int:
    """A number of a file of ``name number`` lines; 0 where it isn't there."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def _own_cgroup_files(name: str) -> tuple[Path, ...]:
    """Those of this process's cgroup and its parents that can be seen (v1 and v2)."""
    try:
        with open("/proc/self/cgroup") as own:
            text = own.read()
    except OSError:
        text = ""
    return _cgroup_files(CGROUP, text, name)


# Asked at each set-up, of files that mostly are not there.
@functools.lru_cache(maxsize=32)
def _cgroup_files(root: Path, own: str, name: str) -> tuple[Path, ...]:
    return tuple(file for folder in _cgroup_folders(root, own) if (file := folder / name).exists())


@functools.lru_cache(maxsize=8)
def _cgroup_folders(root: Path, own: str) -> tuple[Path, ...]:
    folders = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(",") or [""]:
            folder = (root / controller / path.lstrip("/")).resolve()
            while root in (folder, *folder.parents):
                if folder.is_dir():
                    folders[folder] = True
                folder = folder.parent
    return tuple(folders) or (root,)


def cpu_quota() -> float:
    """CPUs that the cgroup's quota allows (v1 and v2); infinite without one."""
    quota = math.inf
    for file in _own_cgroup_files("cpu.max"):
        try:
            limit, period = file.read_text().split()
            if limit != "max":
                quota = min(quota, int(limit) / int(period))
        except (OSError, ValueError):
            pass
    for file in _own_cgroup_files("cpu.cfs_quota_us"):
        limit, period = _read_number(file), _read_number(file.with_name("cpu.cfs_period_us"))
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
    Files that were read count as used there, but the kernel drops them when memory is needed.
    """
    headroom = math.inf
    for limit_name, usage_name, dropped in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):
        for file in _own_cgroup_files(limit_name):
            limit, usage = _read_number(file), _read_number(file.with_name(usage_name))
            if limit is not None and usage is not None and 0 < limit < 1 << 60:
                usage -= _read_field(file.with_name("memory.stat"), dropped)
                headroom = min(headroom, max(0, limit - max(0, usage)))
    return headroom


def memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
