"""Sets of CPUs as the kernel and hwloc write them: "0-3,8"."""

from __future__ import annotations

from collections.abc import Iterable


def parse_cpus(text: str) -> frozenset[int]:
    """``"0-3,8"`` -> the set of CPUs, as Linux and hwloc write it. ValueError otherwise."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ValueError(f"not a list of CPUs: {text!r}")
        low, high = int(first), int(last or first)
        if high < low or high >= 1 << 20:
            raise ValueError(f"not a list of CPUs: {text!r}")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """The inverse of ``parse_cpus``."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
