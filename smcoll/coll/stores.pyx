"""Which stores a rank uses for what others will read: the kind that is cheapest here and now.

What a line costs its writer and its readers depends on the processor, on the distance of the cores,
and on the kind of the stores that wrote it. A store to a line that another core has read waits for
that line; a string copy may take it without; a non-temporal store sends it to memory, from where
the reader's prefetcher fetches it sooner than from the cache of a core far away. No kind is the
best everywhere, and on virtual machines distances change within seconds.

So it is measured. Every rank samples what its own stores cost it, and what reading for its user
cost it by the kind of the stores before, which the writer tells in the section's line. (Who reads
in order to pass on counts that as its own storing.) Readers publish their figures; a writer takes
the kind that is cheapest in all (``cost_in_calls``). Nothing has to be agreed on: any kind gives
the same bytes, and each is complete before the flag behind it is stored.

Figures are kept apart by collective and by size (powers of two), since both change what else a copy
has to wait for. First comes a survey: some rounds through the ring of segments, of which one
segment in eight is written with each kind; the mean cost of each counts, but for the dearest
section. It begins when the ring's memory has been used once: before, no other core has its lines,
and every kind is cheap. There are two more where the distance of the cores has changed
(``distance``; a rank looks the more rarely, the more often that left the kind in use), and one
where calls of that size follow another algorithm from now on: there the usual kind stays unless
another one is much cheaper, whichever was in use. A rank that stored nothing meanwhile
has its own later; where the ring has fewer segments than there are kinds, each has a trial. In
between each other kind has a trial now and then, where one segment in eight is written first with
the kind in use, then with the other; the dearer a kind was, the rarer, so that a rank's trials cost
less than 1 %. When one begins, and with which kind, follows from how many sections the class has
had. That is the same on all ranks that store alike: so they try at the same time, since all wait
for the slowest, and who reads from all of them sees one kind. Calls in which the communicator tries
an algorithm (``engine.learning``) do not count: each would spoil the other's figures.

=================  ==============================  ==============================================
word               stored by                       loaded by
=================  ==============================  ==============================================
``read_costs``     its owner, relaxed, now and     a writer, relaxed, behind a trial
                   then behind a read
kind in a line     the line's owner, relaxed,      readers, relaxed, behind the flag
                   before its flag
=================  ==============================  ==============================================

Neither orders anything: a word that comes late, or of another section, is an old figure.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from smcoll.base.atomics cimport load_relaxed, store_relaxed
from smcoll.base.kernels cimport (
    STORES_KINDS, STORES_NON_TEMPORAL, STORES_ORDINARY, STORES_STRING, has_stores,
)
from smcoll.base.signature cimport (
    COLLECTIVE_BCAST, COLLECTIVE_EXSCAN, COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_SCAN, COLLECTIVES, collective_in,
)
from smcoll.coll.distance cimport look_at_distance
from smcoll.segment cimport STORE_CLASSES, read_costs
from smcoll.sync.team cimport Team

from smcoll.base.kernels import STORES_NAMES, stores_available

cdef enum:
    UNIT = 65536               # bytes that costs are given for
    # Bytes between two samples in steady use. In powers of two it would always be the same section
    # of a call.
    SAMPLE_EVERY = 9 << 15
    SAMPLED_ROUNDS = 3         # with each kind, and one between them
    TRIAL_ROUNDS = 2 * SAMPLED_ROUNDS + 1
    SURVEY_ROUNDS = 3
    WINS_NEEDED = 4            # those by BETTER count twice
    ALL_KINDS = -1             # on trial: a survey
    SHORTEST_PAUSE = 8         # rounds from one trial's begin to the next, a power of two,
    LONGEST_PAUSE = 1 << 14    # as all are
    ONE_SEGMENT_IN = 8
    SETTLING_READS = 1         # of a kind that has come up anew: not sampled,
    FRESH_READS = 16           # and up to here all are
    READERS_ASKED = 8
    COST_BITS = 21             # of each kind in a published word

cdef double NS_A_LINE = 64.0 / UNIT
# A kind that costs less than so much of what the one in use does replaces it, in so many trials in
# a row: two, or twice as many where it is near (one figure may be a tenth off).
cdef double BETTER = 0.85
cdef double A_LITTLE_BETTER = 0.96
cdef double OUTLIER = 2.0      # a sample counts at most so many times what was known
cdef double TRIAL_SHARE = 0.005   # of all time is for what trials cost more


cdef int class_number(size_t nbytes) noexcept nogil:
    """By powers of two; -1 below the first."""
    cdef int number = 0
    if nbytes < SMALLEST_CHOICE:
        return -1
    nbytes //= SMALLEST_CHOICE
    while nbytes > 1 and number < STORE_CLASSES - 1:
        nbytes //= 2
        number += 1
    return number


cdef StoreClass *store_class(Team *team, size_t nbytes, uint64_t sections) noexcept nogil:
    """Of this rank's current call, for a vector of so many bytes. NULL: no choice."""
    cdef int collective = collective_in(team.signature)
    cdef StoreClass *chosen = store_class_of(team, collective, nbytes)
    if chosen != NULL:
        tell_overlap(team, chosen, sections if flows_one_way(collective) else 1)
    return chosen


cdef StoreClass *store_class_of(Team *team, int collective, size_t nbytes) noexcept nogil:
    """The same for a message that has the stores of this collective."""
    cdef int number = class_number(nbytes)
    cdef StoreClass *chosen
    if team.stores.fixed >= 0 or number < 0 or team.size == 1:
        return NULL
    chosen = &team.stores.classes[collective * STORE_CLASSES + number]
    chosen.rests = team.number == team.tried_in > 0
    return chosen


cdef void tell_overlap(const Team *team, StoreClass *chosen, uint64_t pieces) noexcept nogil:
    """In so many pieces, of which one is written while another one is read."""
    chosen.overlapped = 1 if team.oversubscribed else max(pieces, <uint64_t> 1)


# ---------------------------------------------------------------------- as a writer

cdef void add_store_sample(StoreClass *chosen, int kind, int64_t ns, size_t nbytes) noexcept nogil:
    """What one section cost: its stores, and reading them back where this rank itself does."""
    cdef double cost = max(ns, <int64_t> 1) * <double> UNIT / nbytes
    if nbytes < SMALLEST_SAMPLE:
        return
    chosen.spent[kind] += cost
    chosen.highest[kind] = max(chosen.highest[kind], cost)
    chosen.samples[kind] += 1


cdef double writing_cost(const StoreClass *chosen, int kind) noexcept nogil:
    """The mean of this trial's samples, since some lines have left the readers' caches and others
    have not; but for the dearest one: who loses its core in the middle of a copy has another cost
    than that of stores. 0: there are none."""
    if chosen.samples[kind] < 2:
        return chosen.spent[kind]
    return (chosen.spent[kind] - chosen.highest[kind]) / (chosen.samples[kind] - 1)


cdef double readers_cost(Team *team, const StoreClass *chosen, int kind) noexcept nogil:
    """The mean of what readers have published, the first of those behind this rank; 0: none has."""
    cdef size_t at = chosen - team.stores.classes
    cdef double total = 0
    cdef uint64_t cost
    cdef int i, rank, found = 0
    for i in range(1, team.size):
        rank = (team.rank + i) % team.size
        cost = load_relaxed(read_costs(&team.layout, team.base, rank) + at)
        cost = cost >> (kind * COST_BITS) & ((1 << COST_BITS) - 1)
        if cost != 0:
            total += cost
            found += 1
            if found == READERS_ASKED:
                break
    return total / found if found > 0 else 0


cdef int kind_on_trial(const StoreClass *chosen, uint64_t begin) noexcept nogil:
    """In the trial that begins with this round: who was cheaper once, who is not known yet, else
    one after the other. The kind in use where there is no other."""
    cdef int i, kind, found = chosen.stores
    if chosen.challenger >= 0:
        return chosen.challenger
    for i in range(STORES_KINDS):
        kind = <int> ((begin // SHORTEST_PAUSE + i) % STORES_KINDS)
        if kind == chosen.stores or not has_stores(kind):
            continue
        if chosen.cost[kind] == 0:
            return kind
        if found == chosen.stores:
            found = kind
    return found


cdef bint find_costs(Team *team, StoreClass *chosen, int kind) noexcept nogil:
    """Of the kind in use and of this one, to write and to read; False: there is more to see."""
    cdef double reading = readers_cost(team, chosen, kind)
    cdef double reading_used = readers_cost(team, chosen, chosen.stores)
    cdef double writing = writing_cost(chosen, kind)
    cdef double writing_used = writing_cost(chosen, chosen.stores)
    if chosen.is_new or writing == 0 or writing_used == 0:
        return False
    chosen.written[kind] = writing
    chosen.written[chosen.stores] = writing_used
    if (reading == 0) != (reading_used == 0):
        return False
    chosen.cost[kind] = cost_in_calls(chosen, chosen.written[kind], reading)
    chosen.cost[chosen.stores] = cost_in_calls(
        chosen, chosen.written[chosen.stores], reading_used)
    return True


cdef inline double cost_in_calls(const StoreClass *chosen, double writing,
                                 double reading) noexcept nogil:
    """Of the two stages of a pipeline the longer one counts, and the other one in one section."""
    return max(writing, reading) + min(writing, reading) / chosen.overlapped


cdef inline bint flows_one_way(int collective) noexcept nogil:
    """Whether ranks that write hand on to ranks that read; else each rank does both."""
    return (COLLECTIVE_BCAST <= collective <= COLLECTIVE_REDUCE
            or COLLECTIVE_SCAN <= collective <= COLLECTIVE_EXSCAN)


cdef void plan_trial(StoreClass *chosen, uint64_t round) noexcept nogil:
    """The next one: when, which kind, which segments. The dearer the kind, the later."""
    cdef uint64_t pause = SHORTEST_PAUSE << min(chosen.failures, 10), hashed
    cdef double excess
    while True:
        chosen.trial = (round // pause + 1) * pause
        # Anywhere in the pause: else roots that take turns might always meet the same trials.
        hashed = chosen.trial * <uint64_t> 0x9E3779B97F4A7C15
        chosen.trial += (hashed >> 32) % pause
        chosen.on_trial = kind_on_trial(chosen, chosen.trial)
        if chosen.challenger >= 0 or chosen.cost[chosen.on_trial] == 0:
            break
        excess = max(0.0, chosen.cost[chosen.on_trial] / chosen.cost[chosen.stores] - 1)
        if (pause >= LONGEST_PAUSE or (SAMPLED_ROUNDS + 1) * excess
                <= ONE_SEGMENT_IN * TRIAL_SHARE * <double> pause):
            break
        pause *= 2
    chosen.turn = hashed >> 61
    chosen.is_new = True
    chosen.next_look = look_after(chosen, round)


cdef void plan_survey(StoreClass *chosen, uint64_t round) noexcept nogil:
    cdef int kind
    chosen.trial = round + 1
    chosen.on_trial = ALL_KINDS
    chosen.turn = chosen.trial
    chosen.is_new = True
    chosen.was_late = False
    for kind in range(STORES_KINDS):
        # Who is not measured is unknown: what was before is over.
        if kind != chosen.stores:
            chosen.cost[kind] = 0


# Alike on ranks that store alike, so that most surveys begin together.
cdef inline uint64_t look_after(const StoreClass *chosen, uint64_t round) noexcept nogil:
    cdef uint64_t pause = SHORTEST_PAUSE << (0 if chosen.is_doubtful else min(chosen.alarms, 10))
    return (round // pause + 1) * pause


cdef void look(Team *team, StoreClass *chosen, uint64_t round) noexcept nogil:
    """Plan a survey where the distance of the cores has changed."""
    cdef bint again = look_at_distance(team, &chosen.distance)
    cdef bint is_first = not chosen.is_doubtful and chosen.moves != chosen.distance.moves
    chosen.next_look = round + 1 if again else look_after(chosen, round)
    if chosen.on_trial == ALL_KINDS or not (is_first or chosen.is_doubtful):
        return
    chosen.moves = chosen.distance.moves
    chosen.alarms += is_first
    # Some figures of the first one may be from before the change: so there is a second one.
    chosen.is_doubtful = is_first
    plan_survey(chosen, round)


cdef void end_trial(Team *team, StoreClass *chosen, uint64_t round) noexcept nogil:
    """Take the cheaper kind, and plan the next trial."""
    cdef int kind = chosen.on_trial
    cdef bint was_unknown = chosen.cost[kind] == 0
    if not find_costs(team, chosen, kind):
        chosen.failures += 1
    else:
        chosen.failures = 0
        challenge(chosen, kind, was_unknown)
    plan_trial(chosen, round)


cdef void challenge(StoreClass *chosen, int kind, bint at_once) noexcept nogil:
    """Where this kind is cheaper now than the one in use, it may replace it."""
    cdef double used = chosen.cost[chosen.stores]
    cdef bint is_better = chosen.cost[kind] < BETTER * used
    if chosen.cost[kind] >= A_LITTLE_BETTER * used:
        chosen.challenger = -1
        return
    if chosen.challenger != kind:
        chosen.challenger = kind
        chosen.wins = 0
    chosen.wins += 2 if is_better else 1
    if is_better and at_once or chosen.wins >= WINS_NEEDED:
        chosen.stores = kind
        chosen.challenger = -1
        chosen.alarms = 0


cdef void end_survey(Team *team, StoreClass *chosen, uint64_t round) noexcept nogil:
    """Take the cheapest kind. Those that are not known yet have the next trials."""
    cdef int kind, cheapest = chosen.stores
    for kind in range(STORES_KINDS):
        if (has_stores(kind) and find_costs(team, chosen, kind)
                and chosen.cost[kind] < chosen.cost[cheapest]):
            cheapest = kind
    if chosen.is_unclaimed and chosen.cost[chosen.usual] > 0:
        # What suited another algorithm would stay if it were only a little dearer than the best.
        chosen.stores = chosen.usual
    chosen.is_unclaimed = False
    chosen.challenger = -1
    chosen.failures = 0
    challenge(chosen, cheapest, True)
    plan_trial(chosen, round)


cdef int stores_in_survey(const StoreClass *chosen, uint64_t segment, uint32_t ring,
                          bint *sampled) noexcept nogil:
    cdef int kind = <int> ((segment + chosen.turn) % min(ring, <uint32_t> ONE_SEGMENT_IN))
    sampled[0] = kind < STORES_KINDS and has_stores(kind)
    return kind if sampled[0] else chosen.stores


cdef int stores_in_trial(const StoreClass *chosen, uint64_t segment, uint32_t ring, uint64_t done,
                         bint *sampled) noexcept nogil:
    cdef bint takes_part = segment % ONE_SEGMENT_IN == chosen.turn % ring
    sampled[0] = takes_part and done != SAMPLED_ROUNDS
    return chosen.on_trial if takes_part and done >= SAMPLED_ROUNDS else chosen.stores


cdef int choose_stores(Team *team, StoreClass *chosen, uint64_t number, uint32_t ring,
                       bint is_fresh, bint *sampled) noexcept nogil:
    cdef uint64_t round = number // ring, done
    cdef bint is_survey
    cdef int kind, stores
    sampled[0] = False
    if chosen.rests:
        return chosen.stores
    if chosen.is_due:
        chosen.is_due = False
        plan_survey(chosen, round)
    is_survey = chosen.on_trial == ALL_KINDS
    if is_survey and chosen.is_new and is_fresh:
        chosen.trial = round + 1
    if round < chosen.trial:
        if round >= chosen.next_look:
            look(team, chosen, round)
        return chosen.stores
    if is_survey and chosen.is_new and not chosen.was_late and round > chosen.trial:
        chosen.trial = round
        chosen.was_late = True
    done = round - chosen.trial
    if is_survey and ring < STORES_KINDS:
        # Not a segment for each: one after the other.
        plan_trial(chosen, round)
    elif is_survey and done >= SURVEY_ROUNDS:
        end_survey(team, chosen, round)
    elif done >= TRIAL_ROUNDS:
        end_trial(team, chosen, round)
    if round < chosen.trial:
        return chosen.stores
    stores = (stores_in_survey(chosen, number % ring, ring, sampled) if is_survey else
              stores_in_trial(chosen, number % ring, ring, done, sampled))
    if sampled[0] and chosen.is_new:
        # What was written before and is closed only now does not count.
        for kind in range(STORES_KINDS):
            chosen.spent[kind] = chosen.highest[kind] = chosen.samples[kind] = 0
        chosen.is_new = False
        if is_survey:
            chosen.moves = chosen.distance.moves
    return stores


cdef void survey_again(Team *team, size_t nbytes) noexcept nogil:
    """Calls of so many bytes follow another algorithm from now on, alike on all ranks.

    Of which collective is not asked: one may be carried out by another's algorithm. Nor exactly how
    long: vectors may be stored in parts.
    """
    cdef int collective, number, kind
    cdef StoreClass *chosen
    for collective in range(COLLECTIVES):
        for number in range(class_number(nbytes) + 1):
            chosen = &team.stores.classes[collective * STORE_CLASSES + number]
            chosen.is_due = chosen.is_unclaimed = True
            chosen.unlike = chosen.sections
            for kind in range(STORES_KINDS):
                chosen.reads[kind] = 0


cdef bint stores_are_settled(const Team *team, int collective, size_t nbytes) noexcept nogil:
    """Whether this rank has no survey for such calls before it."""
    cdef size_t shortest = nbytes
    cdef int number
    cdef const StoreClass *chosen
    if team.stores.fixed >= 0:
        return True
    if collective == COLLECTIVE_REDUCE_SCATTER:
        # Its class is that of a block, or of the whole vector: that depends on the algorithm.
        shortest = nbytes // team.size
    for number in range(max(class_number(shortest), 0), class_number(nbytes) + 1):
        chosen = &team.stores.classes[collective * STORE_CLASSES + number]
        if chosen.sections > 0 and (chosen.on_trial == ALL_KINDS or chosen.is_due):
            return False
    return True


# ---------------------------------------------------------------------- as a reader

cdef bint samples_read(StoreClass *chosen, int kind, size_t nbytes) noexcept nogil:
    if chosen.rests:
        return False
    chosen.all_reads += 1
    if chosen.all_reads - chosen.last_read[kind] > chosen.forgotten:
        chosen.reads[kind] = 0
    chosen.last_read[kind] = chosen.all_reads
    chosen.reads[kind] += 1
    if chosen.reads[kind] <= FRESH_READS:
        return chosen.reads[kind] > SETTLING_READS
    chosen.unread[kind] += nbytes
    if chosen.unread[kind] < SAMPLE_EVERY:
        return False
    chosen.unread[kind] = 0
    return True


cdef void add_read_sample(StoreClass *chosen, int kind, int64_t ns, size_t nbytes) noexcept nogil:
    cdef double known = chosen.read[kind], cost = ns * <double> UNIT / nbytes
    cdef uint64_t published = 0, most = (1 << COST_BITS) - 1
    cdef int i
    if known > 0:
        cost = (known + min(cost, OUTLIER * known)) / 2
    chosen.read[kind] = cost
    for i in range(STORES_KINDS):
        published |= min(<uint64_t> chosen.read[i], most) << (i * COST_BITS)
    store_relaxed(chosen.shared, published)


# ---------------------------------------------------------------------- set-up and report

cdef int init_stores(Team *team, int fixed, bint far) except -1:
    """The choices of a rank whose layout and base are known. ``far``: other ranks are known to lie
    in other parts of the hardware."""
    cdef int i, kinds = 0, first
    cdef StoreClass *chosen
    for i in range(STORES_KINDS):
        kinds += has_stores(i)
    team.stores.fixed = fixed if kinds > 1 else 0
    team.stores.classes = <StoreClass *> calloc(COLLECTIVES * STORE_CLASSES, sizeof(StoreClass))
    if team.stores.classes == NULL:
        raise MemoryError()
    first = STORES_NON_TEMPORAL if far else STORES_STRING
    if not has_stores(first):
        first = STORES_ORDINARY
    for i in range(COLLECTIVES * STORE_CLASSES):
        chosen = &team.stores.classes[i]
        chosen.usual = first
        if i // STORE_CLASSES == COLLECTIVE_REDUCE and chosen.usual == STORES_STRING:
            # Reduced straight into the region, without a copy on the way.
            chosen.usual = STORES_ORDINARY
        chosen.stores = chosen.usual
        chosen.challenger = -1
        chosen.overlapped = 1
        plan_survey(chosen, 0)
        # More than all ranks' sections between two rounds of a trial.
        chosen.forgotten = 64 * team.size
        chosen.shared = read_costs(&team.layout, team.base, team.rank) + i
    return 0


cdef void free_stores(Team *team) noexcept:
    free(team.stores.classes)
    team.stores.classes = NULL


def stores_number(name):
    """Of ``Config.stores``: the kind, -1 for auto. OSError where this processor has no such."""
    if name == "auto":
        return -1
    if name not in stores_available():
        raise OSError(f"this processor has no {name} stores (Config.stores)")
    return STORES_NAMES.index(name)


cdef describe_stores(Team *team, int collective, size_t nbytes):
    """For ``explain``: (the kind in use, why)."""
    cdef StoreClass *chosen
    cdef int number = class_number(nbytes), kind
    if team.stores.fixed >= 0:
        return STORES_NAMES[team.stores.fixed], (
            "set by Config(stores=...) or SMCOLL_STORES" if len(stores_available()) > 1 else
            "this processor has no other")
    if number < 0 or team.size == 1:
        return STORES_NAMES[0], "too short for a choice"
    chosen = &team.stores.classes[collective * STORE_CLASSES + number]
    if chosen.cost[chosen.stores] == 0:
        return STORES_NAMES[chosen.stores], "to begin with; nothing is measured yet"
    figures = ", ".join(
        f"{name} {NS_A_LINE * chosen.written[kind]:.1f} + "
        f"{NS_A_LINE * readers_cost(team, chosen, kind):.1f}"
        for kind, name in enumerate(STORES_NAMES) if has_stores(kind))
    why = f"ns a line to write + to read: {figures}"
    if chosen.distance.line_ns > 0:
        why += (f"; from the core of rank {(team.rank + 1) % team.size} a line takes "
                f"{chosen.distance.line_ns} ns")
    return STORES_NAMES[chosen.stores], why
