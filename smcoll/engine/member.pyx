"""One rank's membership of a segment: what all parts of an engine of one node look at."""

cimport cython
from libc.stdint cimport SIZE_MAX, uint64_t
from libc.stdlib cimport free, malloc

from smcoll.barrier cimport init_team
from smcoll.base.signature cimport COLLECTIVES
from smcoll.coll.stores cimport free_stores, init_stores
from smcoll.segment cimport Mapping
from smcoll.sync.domains cimport Domains
from smcoll.sync.waiting cimport Attendant

from smcoll.coll.stores import stores_number


@cython.final
cdef class Member:
    """The rank's team, its mapping, and whether it can still be used."""

    def __cinit__(self, Mapping mapping not None, config, int rank, int size, bint oversubscribed,
                  int instruction_set, poke, budget, uint64_t start, locations):
        cdef int collective
        self.mapping = mapping
        self.config = config
        self.budget = budget
        self.instruction_set = instruction_set
        self.start = start
        self.domains = Domains(locations)
        self.attendant = Attendant()
        self.attendant.poke = poke
        self.team.rank = rank
        self.team.size = size
        self.team.oversubscribed = oversubscribed
        self.team.domains = &self.domains.view
        for collective in range(COLLECTIVES):
            self.team.streaming_from[collective] = config.internals.streaming_size or SIZE_MAX
            self.team.kernel_copy_from[collective] = SIZE_MAX
            self.team.direct_from[collective] = SIZE_MAX
        self.team.attendant = <void *> self.attendant
        self.team.base = mapping.base
        self.team.layout = mapping.layout
        init_team(&self.team, start)
        # As such, and two more lists for slices.
        self.sources = <const void **> malloc(3 * size * sizeof(void *))
        self.team.scratch = <int *> malloc(2 * size * sizeof(int))
        if self.sources == NULL or self.team.scratch == NULL:
            raise MemoryError()
        init_stores(&self.team, stores_number(config.stores), len(self.domains) > 1)

    def __dealloc__(self):
        free_stores(&self.team)
        free(self.team.scratch)
        free(self.sources)
