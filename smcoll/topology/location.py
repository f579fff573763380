"""Where this process is: its machine, its binding and its network, put together. No MPI."""

from __future__ import annotations

from dataclasses import dataclass

from smcoll.topology import binding, hardware, network
from smcoll.topology.levels import Location, locate

LEVELS = ("all", "network", "node")


@dataclass(frozen=True)
class Selection:
    """Which part of the hierarchy counts (GJMM 3.4).

    ``levels``: "all"; "network": switches and nodes; "node": nodes and what is inside.
    ``torus_dimension``: see ``network``. TypeError, ValueError when there is no such part.
    """

    levels: str = "all"
    torus_dimension: int | None = None

    def __post_init__(self):
        if self.levels not in LEVELS:
            raise ValueError(f"levels {self.levels!r} is none of {', '.join(LEVELS)}")
        dimension = self.torus_dimension
        if dimension is not None and (isinstance(dimension, bool)
                                      or not isinstance(dimension, int)):
            raise TypeError(f"torus_dimension {dimension!r} is no whole number")

    def own_location(self, rank: int) -> Location:
        """Where this process is; ``rank``: in MPI.COMM_WORLD, for made-up bindings.

        ValueError, OSError when a description is malformed or can't be read.
        """
        machine = hardware.read_machine()
        bound = binding.own_binding(rank)
        inside = locate(machine, binding.cpus_on(machine, bound), bound.machine)
        above = () if self.levels == "node" else self._above(bound.host)
        return above + (inside[:1] if self.levels == "network" else inside)

    def _above(self, host: str) -> Location:
        net = network.read()
        if net is not None:
            return net.places(host, self.torus_dimension)
        if self.torus_dimension is not None:
            raise ValueError(f"a torus dimension, but {network.ENVIRONMENT} names no network")
        return ()
