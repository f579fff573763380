"""Choices of stores and of routes with costs that a test dictates: no clock, no copies.

``test_stores.py`` builds this file, and plays a writer and one reader with it.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from smcoll.coll.distance cimport note_line
from smcoll.coll.routes cimport (
    SMALLEST_ROUTED, STAGED_ROUTE, TURN_CALLS, RouteChoice, add_call, begin_choice,
    change_distance, new_choices, route_class,
)
from smcoll.segment cimport compute_layout
from smcoll.coll.stores cimport (
    add_read_sample, add_store_sample, free_stores, init_stores, next_stores, start_reading,
    store_class, survey_again,
)
from smcoll.sync.team cimport Distance, StoreClass, Team

from smcoll.base.kernels import STORES_NAMES


cdef class Pair:
    """A writer (rank 0) and a reader (rank 1) of sections of ``nbytes``."""

    cdef Team writer, reader
    cdef StoreClass *written
    cdef StoreClass *read
    cdef char *base
    cdef size_t nbytes
    cdef unsigned long long sections, fresh
    cdef unsigned int ring

    def __cinit__(self, size_t nbytes, bint far=False, int fresh=64, int ring=16, int overlapped=1,
                  int collective=2):
        """``fresh``: sections at the beginning that use their memory for the first time;
        ``overlapped``: sections of a call, of which one is written while another is read."""
        compute_layout(&self.writer.layout, 2, 2, 8, 131072, 4, 64, 64, 4096)
        self.reader.layout = self.writer.layout
        self.base = <char *> calloc(self.writer.layout.total, 1)
        if self.base == NULL:
            raise MemoryError()
        self.writer.base = self.reader.base = self.base
        self.writer.size = self.reader.size = 2
        self.reader.rank = 1
        self.writer.signature = self.reader.signature = <unsigned long long> collective << 59
        init_stores(&self.writer, -1, far)
        init_stores(&self.reader, -1, far)
        self.nbytes = nbytes
        self.fresh, self.ring = fresh, ring
        self.written = store_class(&self.writer, nbytes, overlapped)
        self.read = store_class(&self.reader, nbytes, overlapped)

    def __dealloc__(self):
        free_stores(&self.writer)
        free_stores(&self.reader)
        free(self.base)

    @property
    def in_use(self):
        """The kind that the writer uses, trials apart."""
        return STORES_NAMES[self.written.stores]

    def skip(self, sections):
        """Others store these."""
        self.sections += sections

    def change_algorithm(self):
        survey_again(&self.writer, self.nbytes)
        survey_again(&self.reader, self.nbytes)

    @property
    def moves(self):
        """How often the writer has noticed another distance."""
        return self.written.distance.moves

    def section(self, to_write, to_read, int64_t line=0):
        """The kind that is used for one section.

        ``to_write``, ``to_read``: ns by kind; ``line``: ns that a line takes from the reader.
        """
        cdef bint sampled, is_fresh = self.sections < self.fresh
        cdef int kind
        cdef Distance known
        if self.sections % self.ring == 0:
            note_line(&self.written.distance, line)
        # What it measures itself, on one core, does not count.
        known = self.written.distance
        kind = next_stores(&self.writer, self.written, self.sections, self.ring, is_fresh,
                           &sampled)
        self.written.distance = known
        self.sections += 1
        name = STORES_NAMES[kind]
        if sampled:
            add_store_sample(self.written, kind, to_write[name], self.nbytes)
        if start_reading(self.read, kind, self.nbytes, is_fresh) != 0:
            add_read_sample(self.read, kind, to_read[name], self.nbytes)
        return name


def moves_noticed(lines):
    """After which of these looks, each of which took so many ns, cores were found to have moved."""
    cdef Distance distance
    cdef int64_t ns
    distance.moves = distance.looks = distance.unlike = 0
    found = []
    for number, ns in enumerate(lines):
        before = distance.moves
        note_line(&distance, ns)
        if distance.moves != before:
            found.append(number)
    return found


def has_choice(size_t nbytes, int ranks):
    """Whether messages of this length have one."""
    cdef Team team
    compute_layout(&team.layout, ranks, 2, 8, 131072, 4, 64, 64, 4096)
    team.base = <char *> calloc(team.layout.total, 1)
    team.size = ranks
    team.rank = 0
    team.signature = 0
    init_stores(&team, -1, False)
    found = store_class(&team, nbytes, 1) != NULL
    free_stores(&team)
    free(team.base)
    return found


cdef void notice_distance(RouteChoice *choice, int64_t line_ns) noexcept:
    """A line takes so long from now on."""
    cdef int64_t before = choice.distance.line_ns
    choice.distance.line_ns = line_ns
    change_distance(choice, before)


def classes_of_routes(sizes):
    """The number of the class of each size, and the bytes of the smallest one."""
    return [route_class(nbytes) for nbytes in sizes], <int> SMALLEST_ROUTED


def routes_taken(ns, int calls, moves_at=(), lines=None, bint together=False):
    """The routes of so many calls that take ``ns(route, number)`` each.

    ``moves_at``: with these calls the distance of the cores is another one. ``lines``: how many ns
    a line takes then; without it, each distance differs from the two before. At first it is 100.
    """
    cdef RouteChoice choice
    cdef int64_t now = 1
    cdef int number
    cdef list farther = [100 * 3**(i % 3 + 1) for i in range(len(moves_at))]
    cdef dict line_at = dict(zip(moves_at, farther if lines is None else lines))
    begin_choice(&choice, STAGED_ROUTE, 0)
    choice.distance.line_ns = 100
    routes = []
    for number in range(calls):
        if number in line_at:
            notice_distance(&choice, line_at[number])
        routes.append(choice.tried)
        now += <int64_t> ns(choice.tried, number)
        add_call(&choice, now, True, together)
    return routes


def routes_of_two_ranks(ns, int calls, moves_at=(-1, -1)):
    """Pairs of routes, in calls that take both ranks ``ns(route, other's route, number)``.

    ``moves_at``: the call in which each rank notices another distance of the cores.
    """
    cdef RouteChoice[2] choices
    cdef int64_t now = 1
    cdef int number, rank
    begin_choice(&choices[0], STAGED_ROUTE, 0)
    begin_choice(&choices[1], STAGED_ROUTE, 0)
    routes = []
    for number in range(calls):
        for rank in range(2):
            if number == moves_at[rank]:
                notice_distance(&choices[rank], 300)
        tried = choices[0].tried, choices[1].tried
        routes.append(tried)
        now += <int64_t> ns(*tried, number)
        for rank in range(2):
            add_call(&choices[rank], now, number // TURN_CALLS % 2 == rank, True)
    return routes


def routes_in_one_loop(kinds, ns, int calls):
    """Routes of two calls that follow each other in a loop, of these kinds (number of collective,
    class of size); each call takes ``ns[kind's place][route]``."""
    cdef RouteChoice *choices[2]
    cdef int64_t now = 1
    cdef int number, i
    routes = []
    for i in range(2):
        choices[i] = new_choices(STAGED_ROUTE, kinds[i][0])
    for number in range(calls):
        routes.append((choices[0][<int> kinds[0][1]].tried, choices[1][<int> kinds[1][1]].tried))
        for i in range(2):
            now += <int64_t> ns[i][routes[number][i]]
            add_call(&choices[i][<int> kinds[i][1]], now, True, False)
    for i in range(2):
        free(choices[i])
    return routes
