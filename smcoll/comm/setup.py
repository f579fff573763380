"""Making a communicator's segment, in agreement: all ranks have it, or all fall back to MPI.

Every step is followed by an Allgather of how it went on every rank (``mpi.agreement``).
"""

from __future__ import annotations

import dataclasses
import os
import sys
import weakref

from mpi4py import MPI

from smcoll.base import __version__, kernels
from smcoll.config import Config
from smcoll.engine.node import NodeEngine
from smcoll.errors import SegmentError, TopologyError
from smcoll.internode.network import hidden_communicator
from smcoll.internode.placement import Placement
from smcoll.internode.span import ONE_NODE_ONLY
from smcoll.internode.spanning import SpanningEngine
from smcoll.internode.watch import watch_leaders
from smcoll.memory import cross_memory, heap, heap_arrays
from smcoll.memory.budget import budget
from smcoll.mpi import progress
from smcoll.mpi.agreement import attempt, fits, gather, problem_of, this_thread
from smcoll.mpi.names import name_of
from smcoll.segment import NONCE_BYTES, Mapping, remove_stale
from smcoll.sync.domains import Domains
from smcoll.topology import domains, node, sysfs
from smcoll.tuning import learned, select, tables, variants


def ranks_on_node() -> int:
    """Ranks of the whole job on this node, as the launcher says, else of COMM_WORLD."""
    return node.ranks_of_launcher() or MPI.Intracomm(MPI.COMM_WORLD).Get_size()


def _cpus_of(mask: int) -> frozenset[int]:
    return frozenset(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def _facts() -> dict:
    """What the ranks must know of each other."""
    return {
        "node": node.identity(),
        "cpus": hex(sum(1 << cpu for cpu in node.allowed_cpus())),
        "quota": min(node.cpu_quota(), 1e6),
        "job": ranks_on_node(),
        "memory": cross_memory.record(),
        "instructions": len(kernels.instruction_sets()) - 1,
    }


def _own_location(rank: int) -> dict:
    """Where this process is bound, and what is wrong with a made-up description of that."""
    try:
        return {"location": domains.own_location(MPI.Intracomm(MPI.COMM_WORLD).Get_rank)}
    except (ValueError, FileNotFoundError) as error:
        return {"misplaced": f"rank {rank}: {error}"[:1000]}


def _own_switches(rank: int) -> dict:
    """The switches above this host, and what is wrong with their description."""
    try:
        return {"switches": domains.own_switches(MPI.Intracomm(MPI.COMM_WORLD).Get_rank)}
    except (ValueError, OSError) as error:
        return {"off_network": f"rank {rank}: {error}"[:1000]}


def set_up(comm: MPI.Intracomm,
           config: Config) -> tuple[NodeEngine | SpanningEngine | None, Config, str]:
    """The engine of ``comm``, collectively, with rank 0's settings; or None and why not.

    Raises, on every rank, SegmentError where the ranks have different versions of smcoll, or
    ``strict`` is set and the segment can't be had; TopologyError where one rank's
    ``SMCOLL_TOPOLOGY`` or ``SMCOLL_BINDING`` is malformed, and over several nodes where
    ``SMCOLL_NETWORK`` is, or has no line for a host.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    if size == 1:
        return None, config, "one rank"
    this_thread.config = config
    mine = {
        "version": __version__,
        "location": (),
        "switches": (),
        "off_network": None,
        "misplaced": None,
        "config": dataclasses.asdict(config) if rank == 0 else None,
        "nonce": os.urandom(NONCE_BYTES).hex(),
    }
    mine["problem"] = problem_of(rank, lambda: mine.update(
        _facts() | _own_location(rank) | _own_switches(rank)))
    facts = gather(comm, mine)
    versions = [fact.get("version") for fact in facts]
    if len(set(versions)) > 1:
        raise SegmentError(f"the ranks have different versions of smcoll: {versions}")
    config = Config(**facts[0]["config"])
    _check_all(facts, "misplaced")
    if config.disable:
        return None, config, "disabled by its settings"
    problem = next((fact["problem"] for fact in facts if fact["problem"] is not None), None)
    if problem is not None:
        return _refused(comm, config, problem)
    instructions = min(fact["instructions"] for fact in facts)
    placement = Placement([fact["node"] for fact in facts], [fact["switches"] for fact in facts])
    if placement.nodes == 1:
        engine, problem = _node_engine(comm, config, facts, instructions)
    elif config.across_nodes != "off":
        _check_all(facts, "off_network")
        engine, problem = _spanning_engine(comm, config, facts, instructions, placement)
    else:
        return None, config, "its ranks are on several nodes"
    if engine is None:
        return _refused(comm, config, problem)
    if config.eager:
        try:
            engine.reserve_data()
        except BaseException:
            engine.close()
            raise
    if placement.nodes == 1:
        return engine, config, "shared memory"
    return engine, config, (f"shared memory on each of {placement.nodes} nodes, messages between "
                            "them")


def _check_all(facts: list[dict], problem: str) -> None:
    """TopologyError, on all ranks alike, where one rank told such a problem."""
    told = next((fact[problem] for fact in facts if fact[problem] is not None), None)
    if told is not None:
        raise TopologyError(told)


def _node_engine(comm: MPI.Intracomm, config: Config, facts: list[dict], instructions: int,
                 spans: bool = False) -> tuple[NodeEngine | None, str]:
    """The engine of ranks that are all on this node, or None and why not; alike on all of them.

    ``spans``: as a part of a communicator over several nodes.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    learns = config.learn != "off" and size > 1
    local = max(size, max(fact["job"] for fact in facts))
    masks = [_cpus_of(int(fact["cpus"], 16)) for fact in facts]
    quota = min(fact["quota"] for fact in facts)
    oversubscribed = node.outnumbered(masks, quota, local - size)
    config = config.settled(oversubscribed)
    budget.set_limit(config.budget, local)
    mapping, problem = _first_that_can_be_had(comm, config, bytes.fromhex(facts[0]["nonce"]))
    if mapping is None:
        return None, problem

    def give_back() -> None:
        budget.give_back(mapping.control_bytes)
        mapping.close()

    try:
        heaps = share_heaps(comm, config, local) if config.heap else None
        progress.start()
        # Rank 0 alone reads a table: others may see other files.
        table = (tables.for_ranks(config, size, oversubscribed, heaps is not None)
                 if rank == 0 else None)
        memories = [fact["memory"] for fact in facts]
        locations = [fact["location"] for fact in facts]
        kind = learned.Kind(size, oversubscribed, len(Domains(locations)), heaps is not None, spans)
        reads = config.kernel_copy and all(map(cross_memory.readable, memories))

        def decide(table: dict | None, core_cache: int) -> tuple[dict, dict]:
            decisions = select.decide(config, size, oversubscribed, kind.domains, table, kind.heap,
                                      0 if oversubscribed else core_cache)
            return decisions, variants.for_communicator(
                config, decisions, size, kind.domains, oversubscribed) if learns else {}

        record = {"table": table, "reads": reads, "cache": sysfs.core_cache(), "known": []}
        decided = None
        if rank == 0 and learns:
            try:
                rows, tried = decided = decide(table, record["cache"])
                record["known"] = learned.recall(kind, tried, lambda collective, in_class: (
                    variants.to_try(collective, tried[collective], in_class, size,
                                    rows[collective], mapping.inline_sizes)))
            except Exception as error:   # of rank 0 alone: the others wait for its record
                print(f"smcoll: what was learned on this machine is not used ({error!r})",
                      file=sys.stderr, flush=True)
            while record["known"] and not fits(record):
                record["known"].pop()
        records = gather(comm, record)
        reads = all(record["reads"] for record in records)
        core_cache = 0 if oversubscribed else records[0]["cache"]
        engine = None

        def make_engine() -> None:
            nonlocal engine
            engine = NodeEngine(mapping, config, rank, size, oversubscribed, instructions,
                                progress.poke, budget,
                                locations=locations)
            engine.use_core_cache(core_cache)
            cache = sysfs.last_level_caches(size)
            if not config.internals.streaming_size:
                engine.write_around_caches(select.streaming_sizes(size, cache))
                engine.measure_results(select.measured_results_from(size, cache))
            decisions, to_learn = decided or decide(records[0]["table"], core_cache)
            engine.use(decisions)
            # Behind `use`, which is the end of measuring in heaps.
            if heaps is not None:
                engine.use_heaps(heaps, select.direct_sizes(config, size, core_cache),
                                 select.measured_in_heaps(config, size, core_cache, cache))
            if reads:
                engine.use_processes(
                    memories, select.kernel_copy_sizes(config, size, core_cache, cache),
                    select.measured_routes(config, size, oversubscribed, cache))
            if learns:
                cpus = max(1, int(min(len(frozenset().union(*masks)), quota)))
                engine.learn(to_learn, records[0]["known"], kind, cpus, config.learn == "on")

        # Agreed, too: nobody may look at our words before they have their first values.
        problem = attempt(comm, make_engine)
    except BaseException:
        # A signal's exception, a timeout, data damaged by MPI: this set-up is given up.
        give_back()
        raise
    if problem is not None:
        give_back()
        return None, problem
    return engine, ""


def _spanning_engine(comm: MPI.Intracomm, config: Config, facts: list[dict], instructions: int,
                     placement: Placement) -> tuple[SpanningEngine | None, str]:
    """The engine of ranks on several nodes; if one node can't have its segment, none has."""
    rank, size = comm.Get_rank(), comm.Get_size()
    mine = placement.node_of[rank]
    try:
        hidden, tag = hidden_communicator(comm, gather, facts[0]["nonce"])
        neighbours = MPI.Intracomm.Split(comm, mine, rank)
        neighbours.Set_name(name_of(comm))    # tools show it
    except MPI.Exception as error:
        # On all ranks alike: MPI has no context id left.
        return None, f"MPI makes no further communicator: {error}"[:400]
    here = [facts[peer] for peer in placement.members[mine]]
    try:
        # Arrays in shared heaps are staged there.
        engine, problem = _node_engine(
            neighbours, dataclasses.replace(config, heap=False), here, instructions, spans=True)
    except SegmentError as error:
        # Of this node alone: one that raised here would leave the others waiting.
        engine, problem = None, str(error)[:400]
    neighbours.Free()
    placed = tuple(placement.node_of)
    records = gather(comm, {"problem": problem, "watched": placed in hidden.watches,
                            "oversubscribed": engine is not None and engine.oversubscribed})
    problem = next((record["problem"] for record in records if record["problem"]), "")
    if problem:
        if engine is not None:
            engine.close()
        return None, problem
    if config.watch_nodes and not all(record["watched"] for record in records):
        try:
            hidden.watches[placed] = watch_leaders(comm, gather, placement, rank)
        except BaseException:
            engine.close()
            raise
    watch, unwatched = None, "watch_nodes is off"
    if config.watch_nodes:
        watch, unwatched = hidden.watches[placed]
    # Choices that the ranks compare: nodes may differ in their CPUs.
    oversubscribed = any(record["oversubscribed"] for record in records)
    spanning = SpanningEngine(engine, hidden.comm, tag, placement, config, rank, oversubscribed,
                              watch, unwatched)
    unheeded = spanning.span.unheeded()
    if unheeded and rank == 0:
        print(f"smcoll: {unheeded}; this communicator of {size} ranks is on {placement.nodes} "
              "nodes", file=sys.stderr, flush=True)
    spanning.use(select.decide(dataclasses.replace(config, algorithms={
        collective: name for collective, name in config.named.items()
        if collective not in ONE_NODE_ONLY}), size, oversubscribed))
    return spanning, ""


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


def _refused(comm: MPI.Intracomm, config: Config, problem: str) -> tuple[None, Config, str]:
    """No segment, on any rank: one warning, or SegmentError on all of them."""
    if config.strict:
        raise SegmentError(f"no shared memory segment: {problem}")
    if comm.Get_rank() == 0:
        print(f"smcoll: no shared memory segment ({problem}); the {comm.Get_size()} ranks of this "
              "communicator use MPI", file=sys.stderr, flush=True)
    return None, config, f"no segment: {problem}"


def _kinds_to_try(config: Config, mapping: Mapping) -> list[str]:
    """Kinds of memory in the order in which they are tried; asked on rank 0 only."""
    if config.memory != "auto":
        return [config.memory]
    fits = (mapping.bytes_total <= node.shared_memory()[1]
            and mapping.bytes_per_rank <= budget.leaves("shm"))
    return ["shm", "memfd"] if fits else ["memfd", "shm"]


def _first_that_can_be_had(comm, config: Config, nonce: bytes) -> tuple[Mapping | None, str]:
    """The mapping, of the first kind of memory that works on all ranks; or None, and why not."""
    rank, size = comm.Get_rank(), comm.Get_size()
    problems: list[str] = []
    kinds: list[str] = []
    while not problems or kinds:
        mapping = Mapping(rank, size, config)
        if rank == 0 and not problems:
            kinds = _kinds_to_try(config, mapping)
        problem, kinds = _build(comm, mapping, nonce, kinds)
        if problem is None:
            return mapping, ""
        mapping.close()
        problems.append(problem)
    return None, "; ".join(problems)


def _build(comm, mapping: Mapping, nonce: bytes, kinds: list[str]) -> tuple[str | None, list[str]]:
    """Create, attach, reserve in memory of the first of rank 0's ``kinds``.

    The problem, or None, and the kinds that are left, the same on every rank. A name in /dev/shm
    lives until every rank has mapped the file.
    """
    rank, control = comm.Get_rank(), mapping.control_bytes
    created: dict = {}
    if rank == 0:
        if kinds[0] == "shm":
            remove_stale()
        problem = problem_of(0, lambda: mapping.create(nonce, kinds[0], name_of(comm)))
        created = {"name": mapping.name, "kinds": kinds, "problem": problem}
    created = gather(comm, created)[0]
    kind, *left = created["kinds"]
    if created["problem"] is not None:
        return f"{kind}: {created['problem']}", left

    def attach() -> None:
        if rank != 0:
            mapping.attach(created["name"], nonce, kind)

    problem = attempt(comm, attach)
    mapping.unlink()
    if problem is not None:
        return f"{kind}: {problem}", left

    claimed = False

    def reserve() -> None:
        nonlocal claimed
        budget.claim(control, kind)
        claimed = True
        mapping.reserve_control()

    problem = "given up"
    try:
        problem = attempt(comm, reserve)
    finally:
        if claimed and problem is not None:
            budget.give_back(control)
    if problem is None:
        return None, left
    return f"{kind}: {problem}", left
