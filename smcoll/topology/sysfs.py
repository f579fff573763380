"""The machine as Linux describes it below /sys: for processes that find no hwloc."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

from smcoll.config import parse_bytes
from smcoll.topology.cpuset import parse_cpus

ROOT = Path("/sys/devices/system")
# Of a last-level cache: more than today's server processors have for each core.
MOST_FOR_A_CPU = 16 << 20

# The file of each level; older kernels have the second name only.
_LEVELS = {
    "Package": ("package_cpus_list", "core_siblings_list"),
    "Die": ("die_cpus_list",),
    "Core": ("core_cpus_list", "thread_siblings_list"),
}


def read(root: Path = ROOT) -> list[tuple[str, frozenset[int]]]:
    """Objects for ``build_tree``. Where /sys tells nothing, one PU for each online CPU.

    ``root``: the folder that has the folders ``cpu`` and ``node``.
    """
    online = cpu_list(root / "cpu" / "online") or frozenset([0])
    objects = [("PU", frozenset([cpu])) for cpu in sorted(online)]
    for cpu in sorted(online):
        folder = root / "cpu" / f"cpu{cpu}"
        for kind in _LEVELS:
            cpus = cpus_of_level(folder, kind)
            if cpus:
                objects.append((kind, cpus))
        objects += [(f"L{level}Cache", cpus) for level, cpus in caches(folder)]
    for domain in (root / "node").glob("node[0-9]*"):
        cpus = cpu_list(domain / "cpulist")
        if cpus:
            objects.append(("NUMANode", cpus))
    packages = {cpus for kind, cpus in objects if kind == "Package"}
    # As hwloc does: the only die of its package tells nothing.
    return [(kind, cpus) for kind, cpus in objects if kind != "Die" or cpus not in packages]


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def cpus_of_level(folder: Path, kind: str) -> frozenset[int]:
    """The CPUs of the object of a level that has the CPU of this folder; none: unknown."""
    lists = (cpu_list(folder / "topology" / name) for name in _LEVELS[kind])
    return next(filter(None, lists), frozenset())


def caches(folder: Path) -> list[tuple[str, frozenset[int]]]:
    """(level, CPUs) of the data caches of the CPU of this folder."""
    found = [(_text(cache / "level"), cpu_list(cache / "shared_cpu_list"))
             for cache in folder.glob("cache/index[0-9]*")
             if _text(cache / "type") in ("Data", "Unified")]
    return [(level, cpus) for level, cpus in found if cpus]


@functools.cache
def last_level_caches(ranks: int, root: Path = ROOT) -> int:
    """Bytes of the last-level caches that so many ranks have together, at best one each.

    0 where /sys doesn't tell. All are taken to be like the first CPU's. To a virtual machine
    /sys tells of the whole cache, which other machines use, too: no CPU of ours counts for more
    than ``MOST_FOR_A_CPU``.
    """
    online = cpu_list(root / "cpu" / "online") or frozenset([0])
    found = [(one["level"], min(one["bytes"], MOST_FOR_A_CPU * one["cpus"]),
              len(online) // one["cpus"]) for one in data_caches(root)]
    _, nbytes, caches = max(found, default=(0, 0, 0))
    return nbytes * min(caches, ranks)


def core_cache(root: Path = ROOT) -> int:
    """Bytes of a core's own cache, the one of level 2; 1 MiB where /sys doesn't tell."""
    return next((one["bytes"] for one in data_caches(root) if one["level"] == 2), 1 << 20)


@functools.cache
def data_caches(root: Path = ROOT) -> list[dict[str, int]]:
    """The first online CPU's data caches: ``level``, ``bytes``, and how many online ``cpus`` share
    it. [] where /sys doesn't tell.
    """
    online = cpu_list(root / "cpu" / "online") or frozenset([0])
    found = []
    for cache in sorted((root / "cpu" / f"cpu{min(online)}").glob("cache/index[0-9]*")):
        sharing = len(cpu_list(cache / "shared_cpu_list") & online)
        with contextlib.suppress(ValueError):
            if sharing and _text(cache / "type") != "Instruction":
                found.append({"level": int(_text(cache / "level")),
                              "bytes": parse_bytes(_text(cache / "size")), "cpus": sharing})
    return found


def cpu_list(file: Path) -> frozenset[int]:
    """The CPUs that a file lists; none where it doesn't exist."""
    text = _text(file)
    try:
        return parse_cpus(text) if text else frozenset()
    except ValueError:
        return frozenset()
