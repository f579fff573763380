"""Making a communicator's segment, in agreement: all ranks have it, or all fall back to MPI.

Every step is followed by an Allgather of how it went on every rank (DESIGN rule 4), on the
communicator itself: no message that a user's receive could take, no hidden communicator. What is
gathered carries a checksum, since one MPI's collectives were seen to corrupt data.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import weakref
import zlib

import numpy
from mpi4py import MPI

from . import heap, heap_arrays, kernels, node, progress, select
from .config import Config
from .engine import Engine
from .errors import SegmentError
from .memory import budget
from .segment import NONCE_BYTES, Mapping, remove_stale

_RECORD_BYTES = 4096


def gather(comm: MPI.Intracomm, record: dict) -> list[dict]:
    """Every rank's record, on every rank. SegmentError when what arrives is damaged."""
    text = json.dumps(record).encode()
    if len(text) > _RECORD_BYTES - 8:
        raise SegmentError(f"a set-up record of {len(text)} bytes is too long")
    mine = numpy.zeros(_RECORD_BYTES, numpy.uint8)
    mine[:8].view(numpy.uint32)[:] = len(text), zlib.crc32(text)
    mine[8:8 + len(text)] = numpy.frombuffer(text, numpy.uint8)
    everyone = numpy.zeros((comm.Get_size(), _RECORD_BYTES), numpy.uint8)
    MPI.Intracomm.Allgather(comm, [mine, MPI.BYTE], [everyone, MPI.BYTE])
    records = []
    for rank, row in enumerate(everyone):
        length, checksum = (int(number) for number in row[:8].view(numpy.uint32))
        text = row[8:8 + min(length, _RECORD_BYTES - 8)].tobytes()
        if zlib.crc32(text) != checksum:
            raise SegmentError(f"what rank {rank} sent at set-up arrived damaged: MPI's Allgather "
                               "gives wrong data")
        records.append(json.loads(text))
    return records


def attempt(comm: MPI.Intracomm, step) -> str | None:
    """Run ``step()`` on every rank; the first rank's problem, on every rank, or None."""
    problem = None
    try:
        step()
    except OSError as error:
        problem = f"rank {comm.Get_rank()}: {error}"
    problems = [record["problem"] for record in gather(comm, {"problem": problem})]
    return next((text for text in problems if text is not None), None)


def ranks_on_node(size: int) -> int:
    """Ranks of the whole job on this node, as the launcher says, else of COMM_WORLD."""
    return max(size, node.ranks_of_launcher() or MPI.Intracomm(MPI.COMM_WORLD).Get_size())


def _cpus_of(mask: int) -> frozenset[int]:
    return frozenset(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def establish(comm: MPI.Intracomm, config: Config) -> tuple[Engine | None, Config, str]:
    """The engine of ``comm``, collectively, with rank 0's settings; or None and why not.

    Raises SegmentError on every rank when the segment can't be had and ``strict`` is set.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    if size == 1:
        return None, config, "one rank"
    local = ranks_on_node(size)
    facts = gather(comm, {
        "node": node.identity(),
        "cpus": hex(sum(1 << cpu for cpu in node.allowed_cpus())),
        "quota": min(node.cpu_quota(), 1e6),
        "others": local - size,
        "instructions": len(kernels.instruction_sets()) - 1,
        "config": dataclasses.asdict(config) if rank == 0 else None,
        "nonce": os.urandom(NONCE_BYTES).hex() if rank == 0 else None,
    })
    config = Config(**facts[0]["config"])
    nonce = bytes.fromhex(facts[0]["nonce"])
    if config.disable:
        return None, config, "disabled by its settings"
    if len({fact["node"] for fact in facts}) > 1:
        return None, config, "its ranks are on several nodes"

    mapping = Mapping(rank, size, config)
    control = mapping.control_bytes
    budget.set_limit(config.budget, local)
    problem = _build(comm, mapping, nonce, control)
    if problem is not None:
        mapping.close()
        if config.strict:
            raise SegmentError(f"no shared memory segment: {problem}")
        if rank == 0:
            print(f"smcoll: no shared memory segment ({problem}); "
                  f"the {size} ranks of this communicator use MPI", file=sys.stderr, flush=True)
        return None, config, f"no segment: {problem}"

    heaps = share_heaps(comm, config, local) if config.heap else None
    oversubscribed = node.outnumbered(
        [_cpus_of(int(fact["cpus"], 16)) for fact in facts],
        min(fact["quota"] for fact in facts),
        max(fact["others"] for fact in facts),
    )
    progress.start()
    engine = Engine(mapping, config, rank, size, oversubscribed,
                    min(fact["instructions"] for fact in facts), progress.poke, budget,
                    heaps=heaps)
    engine.use(select.decide(config, size, oversubscribed, heaps is not None))
    # Nobody may look at our words before they have their first values.
    gather(comm, {"ready": True})
    if config.eager:
        engine.reserve_data()
    return engine, config, "shared memory"


# This process's mappings of other processes' heaps, by the heap's nonce: one for each, however many
# communicators use it.
_mapped_heaps: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def share_heaps(comm: MPI.Intracomm, config: Config, local: int) -> list | None:
    """Every rank's shared heap, mapped here, None for the own one; or None: all arrays are staged.

    In agreement: what one rank can't do, none does. ``local``: ranks of the job on this node.
    """
    rank, heaps, records = comm.Get_rank(), [], []

    def make() -> None:
        heap_arrays.ensure(config, local)

    def attach() -> None:
        for peer, record in enumerate(records):
            if peer == rank:
                heaps.append(None)
                continue
            mapped = _mapped_heaps.get(record["nonce"])
            if mapped is None:
                mapped = _mapped_heaps[record["nonce"]] = heap.PeerHeap(record)
            heaps.append(mapped)

    problem = attempt(comm, make)
    if problem is None:
        records = [fact["heap"] for fact in gather(comm, {"heap": heap.record()})]
        problem = attempt(comm, attach)
    if problem is None:
        return heaps
    if rank == 0:
        print(f"smcoll: no shared heaps ({problem}); arrays are copied through the segment",
              file=sys.stderr, flush=True)
    return None


def _build(comm, mapping: Mapping, nonce: bytes, control: int) -> str | None:
    """Create, attach, reserve: the name lives until every rank has mapped the file."""
    rank = comm.Get_rank()
    created: dict = {"name": None, "problem": None}
    if rank == 0:
        remove_stale()
        try:
            created["name"] = mapping.create(nonce)
        except OSError as error:
            created["problem"] = f"rank 0: {error}"
    created = gather(comm, created)[0]
    if created["problem"] is not None:
        return created["problem"]

    def attach() -> None:
        if rank != 0:
            mapping.attach(created["name"], nonce)

    problem = attempt(comm, attach)
    mapping.unlink()
    if problem is not None:
        return problem

    claimed = False

    def reserve() -> None:
        nonlocal claimed
        budget.claim(control)
        claimed = True
        mapping.reserve_control()

    problem = attempt(comm, reserve)
    if problem is not None and claimed:
        budget.give_back(control)
    return problem
