"""Made-up places of ranks on a made-up machine, to be set before a communicator's first call."""

from __future__ import annotations

import contextlib
import os
import random

# 2 packages of 2 L3 caches of 4 cores: domains of 4 CPUs.
MACHINE = "package:2 l3:2 core:4 pu:1"
DOMAINS, WIDTH = 4, 4


def binding(domains: list[int | None]) -> str:
    """``SMCOLL_BINDING`` of ranks in these domains; None: an unbound one."""
    return " ".join("all" if domain is None else str(WIDTH * domain + rank % WIDTH)
                    for rank, domain in enumerate(domains))


def even(ranks: int, domains: int) -> list[int | None]:
    """Ranks dealt out in blocks, as a launcher does it."""
    return [rank * domains // ranks for rank in range(ranks)]


def uneven(ranks: int, seed: int) -> list[int | None]:
    """Any rank in any domain, some empty, some ranks nowhere."""
    chosen = random.Random(seed)
    places = [*range(DOMAINS), None]
    return [chosen.choice(places) for _ in range(ranks)]


@contextlib.contextmanager
def placed(domains: list[int | None] | None):
    """Communicators whose first call is inside see the ranks of COMM_WORLD there; None: as is."""
    names = ("SMCOLL_TOPOLOGY", "SMCOLL_BINDING")
    before = {name: os.environ.pop(name, None) for name in names}
    if domains is not None:
        os.environ.update(zip(names, (MACHINE, binding(domains)), strict=True))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
