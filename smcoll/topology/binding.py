"""Where a process may run: its affinity mask, or a made-up binding for tests and experiments.

``SMCOLL_BINDING`` has one word for each rank of MPI.COMM_WORLD: ``[host:]CPUs``, CPUs as in
``0-3,8`` or ``all``: ``"0 1 2-3 2-3"``, ``"n0:0 n0:1 n1:0 n1:all"``. Ranks with different host
names count as ranks on different nodes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from smcoll.topology import hardware, node
from smcoll.topology.cpuset import format_cpus, parse_cpus
from smcoll.topology.hardware import HardwareObject

ENVIRONMENT = "SMCOLL_BINDING"


@dataclass(frozen=True)
class Binding:
    """``machine``: equal for processes on one node; ``host``: its name; ``cpus``: None is all."""

    machine: str
    host: str
    cpus: frozenset[int] | None


def is_made_up() -> bool:
    """Whether ``SMCOLL_BINDING`` stands for the processes' masks."""
    return bool(os.environ.get(ENVIRONMENT, "").strip())


def parse_bindings(text: str) -> list[Binding]:
    """The value of ``SMCOLL_BINDING``, rank by rank. ValueError when it is malformed."""
    bindings = []
    for word in text.split():
        host, colon, cpus = word.rpartition(":")
        if colon and not host:
            raise ValueError(f"{ENVIRONMENT}: {word!r} is not host:CPUs")
        try:
            allowed = None if cpus == "all" else parse_cpus(cpus)
        except ValueError as error:
            raise ValueError(f"{ENVIRONMENT}: {word!r}: {error}") from None
        bindings.append(Binding(host or node.identity(), host or os.uname().nodename, allowed))
    return bindings


def own_binding(rank: int) -> Binding:
    """This process's binding; ``rank``: in MPI.COMM_WORLD, for a made-up one.

    A made-up machine without made-up bindings has unbound ranks: this machine's mask says nothing
    about it. ValueError when ``SMCOLL_BINDING`` has no word for this rank.
    """
    if is_made_up():
        bindings = parse_bindings(os.environ[ENVIRONMENT])
        if rank >= len(bindings):
            raise ValueError(f"{ENVIRONMENT} has {len(bindings)} words, none for rank {rank}")
        return bindings[rank]
    cpus = None if hardware.is_made_up() else frozenset(node.allowed_cpus())
    return Binding(node.identity(), os.uname().nodename, cpus)


def cpus_on(machine: HardwareObject, binding: Binding) -> frozenset[int]:
    """The CPUs of ``machine`` that the binding allows.

    ValueError when a made-up binding names others. A real mask may have CPUs that the machine's
    description leaves out; if it has no other, the process counts as unbound.
    """
    if binding.cpus is None:
        return machine.cpus
    if is_made_up() and not binding.cpus <= machine.cpus:
        raise ValueError(f"{ENVIRONMENT}: the machine has no CPU "
                         f"{format_cpus(binding.cpus - machine.cpus)}")
    return binding.cpus & machine.cpus or machine.cpus
