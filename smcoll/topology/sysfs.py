"""The machine as Linux describes it below /sys: for processes that find no hwloc."""

from __future__ import annotations

from pathlib import Path

from .hardware import parse_cpus

ROOT = Path("/sys/devices/system")

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
    online = _list(root / "cpu" / "online") or frozenset([0])
    objects = [("PU", frozenset([cpu])) for cpu in sorted(online)]
    for cpu in sorted(online):
        folder = root / "cpu" / f"cpu{cpu}"
        for kind, names in _LEVELS.items():
            cpus = next(filter(None, (_list(folder / "topology" / name) for name in names)), None)
            if cpus:
                objects.append((kind, cpus))
        for cache in folder.glob("cache/index[0-9]*"):
            cpus = _list(cache / "shared_cpu_list")
            if cpus and _text(cache / "type") in ("Data", "Unified"):
                objects.append((f"L{_text(cache / 'level')}Cache", cpus))
    for domain in (root / "node").glob("node[0-9]*"):
        cpus = _list(domain / "cpulist")
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


def _list(file: Path) -> frozenset[int]:
    text = _text(file)
    try:
        return parse_cpus(text) if text else frozenset()
    except ValueError:
        return frozenset()
