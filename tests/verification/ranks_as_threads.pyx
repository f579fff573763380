"""The compiled protocol with threads in place of processes, for ThreadSanitizer.

Every thread is a rank with an engine of its own, over one mapping at one address. From its start to
its end a thread runs without the GIL and calls what the engine calls (``begin_call`` and
``run_collective``, or an exchange through the streams): taking the GIL would order the threads, and
hide what the flags fail to order. For the same reason nobody attends to signals and MPI meanwhile.

``threads_under_tsan.py`` copies this file into a copy of the package and builds it there.
"""

import os
import threading

from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from smcoll.algos cimport functions_of
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.coll.allgather cimport Gathering
from smcoll.base.atomics cimport cpu_pause
from smcoll.barrier cimport begin_call
from smcoll.datatype.convertor cimport Convertor, start_convertor
from smcoll.engine.engine cimport signature_of, stream_signature
from smcoll.engine.node cimport NodeEngine, run_collective
from smcoll.base.kernels cimport OP_SUM, TYPE_INT64, Operation, reduction_kernel_for
from smcoll.coll.reduce_scatter cimport Partition
from smcoll.engine.reservation cimport DATA_REGIONS, STREAMS
from smcoll.segment cimport Mapping
from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_ALLTOALL, COLLECTIVE_BARRIER,
    COLLECTIVE_BCAST, COLLECTIVE_EXSCAN, COLLECTIVE_GATHER, COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCAN, COLLECTIVE_SCATTER, NO_OPERATION, NO_TYPE,
)
from smcoll.coll.streams cimport Exchange, Transfer, begin_exchange, complete_exchange
from smcoll.sync.team cimport DONE, Team
from smcoll.sync.trees cimport TreeView

from smcoll.algorithms import ALGORITHMS
from smcoll.algos import COLLECTIVE_NUMBERS
from smcoll.config import Config
from smcoll.memory.budget import budget
from smcoll.segment import NONCE_BYTES
from smcoll.tuning.select import decide

cdef extern from "sched.h" nogil:
    int sched_yield() noexcept

cdef enum:
    LONGEST = 3000             # elements of 8 bytes: six sections of the smallest data regions
    RADICES = 3
    NUMBERS = 32               # more than the largest number of a collective
    WRONG_DATA = -100          # beside the FAILED codes

cdef int *COLLECTIVES = [
    COLLECTIVE_BARRIER, COLLECTIVE_BCAST, COLLECTIVE_REDUCE, COLLECTIVE_ALLREDUCE,
    COLLECTIVE_ALLGATHER, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCAN, COLLECTIVE_EXSCAN,
    COLLECTIVE_GATHER, COLLECTIVE_SCATTER, COLLECTIVE_ALLTOALL,
]
cdef int COUNT_OF_COLLECTIVES = 11


cdef class _View(Mapping):
    """What another object has mapped, as a rank of the same process sees it."""

    cdef over(self, Mapping whole):
        self.base = whole.base
        self.descriptor = whole.descriptor

    cdef let_go(self):
        self.base = NULL
        self.descriptor = -1


# What rank `rank` puts at `i` in call number `call`.
cdef inline int64_t element(uint64_t call, int rank, size_t i) noexcept nogil:
    return <int64_t> ((call & 0xffff) * 1000003 + <uint64_t> rank * 7919 + i)


# The sum of what the ranks below `ranks` put there.
cdef inline int64_t element_sum(uint64_t call, int ranks, size_t i) noexcept nogil:
    cdef int64_t total = 0
    cdef int rank
    for rank in range(ranks):
        total += element(call, rank, i)
    return total


cdef inline uint64_t next_random(uint64_t *state) noexcept nogil:
    state[0] ^= state[0] << 13
    state[0] ^= state[0] >> 7
    state[0] ^= state[0] << 17
    return state[0] >> 11


cdef class _Rank:
    """One thread's engine and memory."""

    cdef NodeEngine engine
    cdef _View mapping
    cdef int64_t *send
    cdef int64_t *recv
    cdef size_t *begin
    cdef size_t *block
    cdef Convertor *convertors
    cdef Transfer *outgoing
    cdef Transfer *incoming
    cdef const TreeView *trees[RADICES]
    cdef int algorithms[NUMBERS]
    cdef uint64_t shared       # state of the random numbers that all ranks draw alike
    cdef uint64_t own          # of this rank's: delays
    cdef readonly int status
    cdef readonly str where

    def __cinit__(self, Mapping whole, config, int rank, int size, uint64_t seed, uint64_t start):
        cdef int radix
        self.mapping = _View(rank, size, config)
        self.mapping.over(whole)
        self.mapping.reserve_control()
        # Two domains where the ranks are enough.
        places = [(f"NUMA node {2 * other // size}",) for other in range(size)]
        self.engine = NodeEngine(self.mapping, config, rank, size, size > 2, 0, None, budget,
                                 start, places)
        self.engine.use(decide(config, size, size > 2, len(self.engine.domains)))
        for collective, names in ALGORITHMS.items():
            # The last one everywhere, if there at all; threads have no heaps of their own.
            assert "shared_heap" not in names[:-1]
            self.algorithms[COLLECTIVE_NUMBERS[collective]] = len(names) - ("shared_heap" in names)
        self.engine.memory.reserve_part(DATA_REGIONS)
        self.engine.memory.reserve_part(STREAMS)
        self.engine.team.attended = INT64_MAX // 2
        for radix in range(RADICES):
            self.trees[radix] = &self.engine.plans.tree(radix + 1).view
        self.send = <int64_t *> calloc(LONGEST * size, 8)
        self.recv = <int64_t *> calloc(LONGEST * size, 8)
        self.begin = <size_t *> calloc(size + 1, sizeof(size_t))
        self.block = <size_t *> calloc(size, sizeof(size_t))
        self.convertors = <Convertor *> calloc(size, sizeof(Convertor))
        self.outgoing = <Transfer *> calloc(size, sizeof(Transfer))
        self.incoming = <Transfer *> calloc(size, sizeof(Transfer))
        self.shared = seed
        self.own = seed * 31 + <uint64_t> rank + 1

    def __dealloc__(self):
        free(self.send)
        free(self.recv)
        free(self.begin)
        free(self.block)
        free(self.convertors)
        free(self.outgoing)
        free(self.incoming)

    def run(self, int calls):
        """``calls`` random collectives; ``status`` says how it went."""
        cdef int status = DONE, done = 0
        with nogil:
            while done < calls and status == DONE:
                self.dawdle()
                status = self.step()
                done += 1
        self.status = status
        self.where = f"call {done} of {calls}"

    def end(self):
        self.engine.member.closed = True
        self.mapping.let_go()

    cdef void dawdle(self) noexcept nogil:
        cdef uint64_t kind = next_random(&self.own) % 16
        cdef uint64_t _pause
        if kind == 0:
            sched_yield()
        elif kind < 4:
            for _pause in range(next_random(&self.own) % 2000):
                cpu_pause()

    cdef int step(self) noexcept nogil:
        """One collective, chosen by the random numbers that all ranks share."""
        cdef int collective = COLLECTIVES[next_random(&self.shared) % COUNT_OF_COLLECTIVES]
        cdef uint64_t size_class = next_random(&self.shared) % 8
        cdef size_t longest = 8 if size_class < 3 else 300 if size_class < 6 else LONGEST
        cdef size_t elements = next_random(&self.shared) % (longest + 1)
        cdef int root = <int> (next_random(&self.shared) % <uint64_t> self.engine.team.size)
        cdef Plan plan
        plan.algorithm = <int> (next_random(&self.shared) % <uint64_t> self.algorithms[collective])
        plan.functions = functions_of(collective, plan.algorithm)
        plan.fan_in = self.trees[next_random(&self.shared) % RADICES]
        plan.fan_out = self.trees[next_random(&self.shared) % RADICES]
        plan.section_bytes = self.engine.team.layout.segment_size
        if next_random(&self.shared) % 4 == 0:
            plan.section_bytes //= 4
        plan.pipelined = next_random(&self.shared) % 4 != 0
        self.engine.team.layout.core_cache = (next_random(&self.shared) % 3) << 16
        plan.arity = <int> (2 + next_random(&self.shared) % RADICES)
        plan.segments = <int> (
            1 + next_random(&self.shared) % <uint64_t> self.engine.team.layout.segments)
        if (collective == COLLECTIVE_GATHER or collective == COLLECTIVE_SCATTER
                or collective == COLLECTIVE_ALLTOALL):
            return self.exchange(collective, root, elements)
        if collective == COLLECTIVE_ALLGATHER:
            return self.allgather(&plan, elements)
        if collective == COLLECTIVE_BCAST:
            return self.bcast(&plan, elements, root)
        return self.reduction(collective, &plan, elements, root)

    cdef int carry_out(self, Call *call, int collective, const Plan *plan,
                       void *details) noexcept nogil:
        call.team = self.engine.team
        call.plan = plan
        call.details = details
        return run_collective(call, collective)

    cdef int bcast(self, const Plan *plan, size_t elements, int root) noexcept nogil:
        cdef Team *team = self.engine.team
        cdef Call call
        cdef size_t i
        cdef int status
        for i in range(elements):
            self.recv[i] = element(team.call + 1, root, i) if team.rank == root else -1
        memset(&call, 0, sizeof(call))
        call.send = call.recv = <char *> self.recv
        call.nbytes = call.elements = elements * 8
        call.element_size = 1
        call.root = root
        call.sources = self.engine.sources
        begin_call(team, signature_of(COLLECTIVE_BCAST, NO_OPERATION, NO_TYPE, plan, root),
                   call.nbytes)
        status = self.carry_out(&call, COLLECTIVE_BCAST, plan, NULL)
        if status == DONE:
            for i in range(elements):
                if self.recv[i] != element(team.call, root, i):
                    return WRONG_DATA
        return status

    cdef int reduction(self, int collective, const Plan *plan, size_t elements,
                       int root) noexcept nogil:
        """Barrier, Reduce, Allreduce, Reduce_scatter, Scan and Exscan, by SUM."""
        cdef Team *team = self.engine.team
        cdef Call call
        cdef Operation operation
        cdef Partition blocks
        cdef size_t i
        cdef int rank, status
        cdef int first = 0, sources = team.size
        for i in range(elements):
            self.send[i] = element(team.call + 1, team.rank, i)
            self.recv[i] = -1
        operation.kernel = reduction_kernel_for(OP_SUM, TYPE_INT64, 0)
        self.engine.fill_call(&call, <char *> self.send, <char *> self.recv, elements, 8,
                              &operation, root)
        self.begin[0] = 0
        blocks.longest = 0
        for rank in range(team.size):
            # Blocks of different lengths, of some 2 / size of the vector at most.
            self.begin[rank + 1] = elements * (rank + 1) * (rank + 1) // (team.size * team.size) * 8
            blocks.longest = max(blocks.longest, self.begin[rank + 1] - self.begin[rank])
        blocks.begin = self.begin
        blocks.in_place = False
        if collective != COLLECTIVE_REDUCE:
            root = 0
        if collective == COLLECTIVE_BARRIER:
            call.nbytes = 0
        begin_call(team, signature_of(collective, OP_SUM, TYPE_INT64, plan, root), call.nbytes)
        status = self.carry_out(&call, collective, plan, &blocks)
        if status != DONE or collective == COLLECTIVE_BARRIER:
            return status
        if collective == COLLECTIVE_REDUCE and team.rank != root:
            return DONE
        if collective == COLLECTIVE_SCAN or collective == COLLECTIVE_EXSCAN:
            sources = team.rank + (collective == COLLECTIVE_SCAN)
            if sources == 0:
                return DONE
        if collective == COLLECTIVE_REDUCE_SCATTER:
            first = <int> (self.begin[team.rank] // 8)
            elements = (self.begin[team.rank + 1] - self.begin[team.rank]) // 8
        for i in range(elements):
            if self.recv[i] != element_sum(team.call, sources, first + i):
                return WRONG_DATA
        return DONE

    cdef int allgather(self, const Plan *plan, size_t elements) noexcept nogil:
        cdef Team *team = self.engine.team
        cdef Call call
        cdef Gathering blocks
        cdef size_t i
        cdef int rank, status
        memset(&call, 0, sizeof(call))
        memset(&blocks, 0, sizeof(blocks))
        for rank in range(team.size):
            self.block[rank] = elements * (rank + 1) // team.size * 8
            start_convertor(&self.convertors[rank], <char *> (self.recv + rank * LONGEST), NULL,
                         self.block[rank])
            for i in range(elements):
                self.recv[rank * LONGEST + i] = -1
        for i in range(elements):
            self.send[i] = element(team.call + 1, team.rank, i)
        blocks.send_bytes = self.block[team.rank]
        start_convertor(&blocks.send, <char *> self.send, NULL, blocks.send_bytes)
        blocks.block = self.block
        blocks.longest = elements * 8
        blocks.recv = self.convertors
        call.nbytes = blocks.longest
        call.element_size = 1
        begin_call(team, signature_of(COLLECTIVE_ALLGATHER, NO_OPERATION, NO_TYPE, plan, 0),
                   blocks.longest)
        status = self.carry_out(&call, COLLECTIVE_ALLGATHER, plan, &blocks)
        if status != DONE:
            return status
        for rank in range(team.size):
            for i in range(self.block[rank] // 8):
                if self.recv[rank * LONGEST + i] != element(team.call, rank, i):
                    return WRONG_DATA
        return DONE

    cdef void add(self, Transfer *message, int peer, int64_t *memory, size_t elements,
                  bint arrives) noexcept nogil:
        memset(message, 0, sizeof(Transfer))
        message.peer = peer
        message.nbytes = 0 if arrives else elements * 8
        message.room = elements * 8
        start_convertor(&message.convertor, <char *> memory, NULL, elements * 8)

    # How many of `elements` the sender of a message really sends.
    cdef inline size_t length(self, size_t elements, int source, int target) noexcept nogil:
        return elements * <size_t> (1 + (source + target) % 3) // 3

    cdef int exchange(self, int collective, int root, size_t elements) noexcept nogil:
        """Gather, Scatter and Alltoall; in place (Alltoall) in half of the calls."""
        cdef Team *team = self.engine.team
        cdef Exchange exchange
        cdef bint in_place = collective == COLLECTIVE_ALLTOALL and next_random(&self.shared) % 2
        cdef int64_t *arrives = self.send if in_place else self.recv
        cdef int mine = team.rank, peer, status
        cdef size_t i, sent
        memset(&exchange, 0, sizeof(exchange))
        exchange.team = team
        exchange.streams = self.engine.memory.streams
        exchange.outgoing = self.outgoing
        exchange.incoming = self.incoming
        for peer in range(team.size):
            if peer == mine:
                continue
            for i in range(elements):
                self.recv[peer * LONGEST + i] = -1
                self.send[peer * LONGEST + i] = element(team.call + 1, mine, i)
            sent = elements if in_place else self.length(elements, mine, peer)
            if collective == COLLECTIVE_ALLTOALL or (
                    peer == root if collective == COLLECTIVE_GATHER else mine == root):
                self.add(&self.outgoing[exchange.sends], peer, self.send + peer * LONGEST, sent,
                         False)
                exchange.sends += 1
            if collective == COLLECTIVE_ALLTOALL or (
                    mine == root if collective == COLLECTIVE_GATHER else peer == root):
                self.add(&self.incoming[exchange.receives], peer, arrives + peer * LONGEST,
                         elements, True)
                if in_place:
                    self.incoming[exchange.receives].behind = &self.outgoing[exchange.sends - 1]
                exchange.receives += 1
        begin_call(team, stream_signature(collective, root), 0)
        begin_exchange(&exchange)
        status = complete_exchange(&exchange)
        if status != DONE:
            return status
        for peer in range(exchange.receives):
            sent = self.incoming[peer].nbytes // 8
            if not in_place and sent != self.length(elements, self.incoming[peer].peer, mine):
                return WRONG_DATA
            for i in range(sent):
                if (arrives[self.incoming[peer].peer * LONGEST + i]
                        != element(team.call, self.incoming[peer].peer, i)):
                    return WRONG_DATA
        return DONE


def run_threads(int ranks, int calls, uint64_t seed, uint64_t start, settings, double deadline):
    """``calls`` random collectives by ``ranks`` threads; what went wrong, or None.

    ``start``: where all counters begin. ``settings``: of ``Config``. ``deadline`` in seconds.
    """
    config = Config(**settings)
    whole = Mapping(0, ranks, config)
    whole.create(os.urandom(NONCE_BYTES))
    whole.unlink()
    members = [_Rank(whole, config, rank, ranks, seed, start) for rank in range(ranks)]
    threads = [threading.Thread(target=(<_Rank> member).run, args=(calls,), daemon=True)
               for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline)
    problems = [f"rank {rank}: {'hangs' if threads[rank].is_alive() else describe(member)}"
                for rank, member in enumerate(members)
                if threads[rank].is_alive() or member.status != DONE]
    if problems:
        return "; ".join(problems)
    for member in members:
        member.end()
    whole.close()
    return None


def describe(_Rank member):
    kind = "wrong data" if member.status == WRONG_DATA else f"failed ({member.status})"
    return f"{kind} in {member.where}"
