/* Sections in flight through the banks of segments: smcoll/coll/pipeline.pyx (plan_call, advance,
 * open_section, close_section, run_phase), pipeline.pxd (writable, post, heard),
 * barrier.pyx (prove_bank, barrier_dissemination), barrier.pxd (acquire_slot,
 * release_slot), and phases of all_read.pyx, tiled.pyx, tree.pyx.
 *
 * Every sequence of PERIOD calls of the kinds below, repeated up to CALLS calls, each of SECTIONS
 * sections and of any number of a bank's slots (use_segments).
 *
 *   ALL_READ        copy_in; reduce_everything: all read all
 *   TILED           copy_in_but_own_slice; reduce_own_slice_for_all; copy_out_others: two posts a
 *                   section
 *   FAN_IN_FAN_OUT  reduce_up; pass_down: the result replaces the partial one in the same region
 *   ONE_SEGMENT     all_read's phases with one segment for all sections (plan_call): a handshake
 *                   "read" between sections
 *   DISSEMINATION   barrier_dissemination: one flag for all steps (it uses one segment)
 *   FAN_OUT(root)   pass_down: the root never waits for anybody but in acquire_slot
 *
 * A slot has two words of data, each a part of the region: what is copied in, and the slice that a
 * rank reduces. Their values are the tick and step that they belong to, so a reader that finds
 * another value has lost a message, reads a stale one, or was let through by another call. The
 * driver of the code meets AGAIN by waiting for that very flag and asking again: here it blocks.
 *
 * Two ranks that both store (ALL_READ, TILED, ONE_SEGMENT) change regions in each pass (REGION). Two
 * of which the root stores (FAN_OUT) share rank 0's, if the last such root was the other one.
 *
 * Mutants: RELAXED_FLAG (with WEAK), POST_BEFORE_COPY, NO_BANK_BARRIER, BANK_ONE_ROUND_EARLY,
 * EPOCH_TOO_HIGH, EPOCH_TOO_LOW, RELEASE_BEFORE_READING, RELEASE_AT_FIRST_SLOT (SEGMENTS > 1),
 * WINDOW_TOO_WIDE, NO_READ_HANDSHAKE, WAIT_ONE_TOO_LOW, BANK_LEFT_UNRELEASED (SEGMENTS > 1),
 * ONE_RANK_CHANGES_REGIONS, ONE_RANK_SHARES_REGIONS (PERIOD > 1).
 */

#ifndef BANKS
#define BANKS 2
#endif
#ifndef SEGMENTS
#define SEGMENTS 1
#endif
#ifndef PERIOD
#define PERIOD 2
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef SECTIONS
#define SECTIONS 3
#endif
#ifndef RADIX_IN
#define RADIX_IN 1
#endif
#ifndef RADIX_OUT
#define RADIX_OUT 2
#endif

#define SLOTS (BANKS * SEGMENTS)

/* The words of a rank. */
#define FLAG(slot) (slot)
#define DATA(slot) (SLOTS + (slot))
#define SLICE(slot) (2 * SLOTS + (slot))
#define FIELD(bank) (3 * SLOTS + (bank))
#define WORDS (3 * SLOTS + BANKS)

/* Words are numbered through all ranks: two of them store into each other's regions. */
#define HOME(owner) 0
#define OWN(word) (self * WORDS + (word))

#include "memory.pml"

#define ALL_READ 0
#define TILED 1
#define FAN_IN_FAN_OUT 2
#define ONE_SEGMENT 3
#define DISSEMINATION 4
#define FAN_OUT(root) (5 + (root))
#define KINDS (5 + RANKS)
#define ROOT (kind - 5)
#define NOBODY RANKS

/* pipeline.pxd: SECTION_STEPS, STEP_READ; the steps of the algorithms. */
#define SECTION_STEPS 4
#define STEP_IN 1
#define STEP_RESULT 2
#define STEP_READ 3

byte script[PERIOD];
byte share[PERIOD];                    /* of a bank's slots, in use in this call */

/* Trees numbered breadth first. */
#define PARENT(v, radix) (((v) - 1) / (radix))
#define FIRST_CHILD(v, radix) ((v) * (radix) + 1)
#define HAS_CHILD(v, i, radix) (FIRST_CHILD(v, radix) + (i) < RANKS && (i) < (radix))
#define VIRTUAL(root) ((self + RANKS - (root)) % RANKS)
#define REAL(v, root) (((v) + (root)) % RANKS)
#define OTHER(i) ((self + (i)) % RANKS)

/* plan_call: how many sections may be in flight. */
#ifdef WINDOW_TOO_WIDE
#define MOST_IN_FLIGHT 4
#else
#define MOST_IN_FLIGHT ((BANKS - 1) * in_use + 1)
#endif

/* The slot of the current section, from `position`: its distance from slot 0 of bank 0 in the round
 * `pass`, if banks had the `in_use` slots that this call uses of each. */
#define BANK ((position / in_use) % BANKS)
#define SLOT (BANK * SEGMENTS + position % in_use)
#define PASS NUMBER(pass + position / (in_use * BANKS))
#define TICK NUMBER(tick + section * SECTION_STEPS)

/* region: whose words hold what `rank` stores. */
#define IS_SWAPPED (RANKS == 2 && PASS % 2 == 1 && \
                    (kind == ALL_READ || kind == TILED || kind == ONE_SEGMENT))
#ifdef ONE_RANK_CHANGES_REGIONS
#define CHANGED(rank) (IS_SWAPPED && self == 0 -> RANKS - 1 - (rank) : (rank))
#else
#define CHANGED(rank) (IS_SWAPPED -> RANKS - 1 - (rank) : (rank))
#endif
#ifdef ONE_RANK_SHARES_REGIONS
#define REGION(rank) (shares && self == 0 -> 0 : CHANGED(rank))
#else
#define REGION(rank) (shares -> 0 : CHANGED(rank))
#endif

#ifdef BANK_ONE_ROUND_EARLY
#define WAITED_PASS NUMBER(PASS - 1)
#else
#define WAITED_PASS PASS
#endif
#if defined(EPOCH_TOO_HIGH)
#define RELEASED_NUMBER(pass) NUMBER((pass) + 2)
#elif defined(EPOCH_TOO_LOW)
#define RELEASED_NUMBER(pass) (pass)
#else
#define RELEASED_NUMBER(pass) NUMBER((pass) + 1)
#endif
#define RELEASED_PASS RELEASED_NUMBER(PASS)
#ifdef RELEASE_AT_FIRST_SLOT
#define RELEASING_SLOT 0
#else
#define RELEASING_SLOT (in_use - 1)
#endif
#ifdef WAIT_ONE_TOO_LOW
#define WAITED(step) NUMBER(TICK + (step) - 1)
#else
#define WAITED(step) NUMBER(TICK + (step))
#endif

/* writable, acquire_slot */
inline writable() {
    skip;
#ifndef NO_BANK_BARRIER
    if
    :: proven[BANK] == PASS
    :: else ->
        i = 1;
        do
        :: i < RANKS ->
            atomic { REACHED(SHARED(OTHER(i), FIELD(BANK)), WAITED_PASS) -> i++ }
        :: else -> break
        od;
        atomic { proven[BANK] = PASS; i = 0 }
    fi
#endif
}

/* Data into the own region, then post(step). */
inline copy_and_post(data, step) {
#ifdef POST_BEFORE_COPY
    store(OWN(FLAG(SLOT)), NUMBER(TICK + (step)), RELEASE);
    store(REGION(self) * WORDS + (data), NUMBER(TICK + (step)), 0)
#else
    store(REGION(self) * WORDS + (data), NUMBER(TICK + (step)), 0);
    store(OWN(FLAG(SLOT)), NUMBER(TICK + (step)), RELEASE)
#endif
}

/* heard: blocks until `rank` has posted `step` of this section or a later one. */
#define HEARD(rank, step) REACHED(SHARED(rank, FLAG(SLOT)), WAITED(step))

inline heard_all(step) {
    i = 1;
    do
    :: i < RANKS -> atomic { HEARD(OTHER(i), step) -> i++ }
    :: else -> break
    od
}

/* The data of `rank`, read as what `step` stands for. */
inline read(rank, data, step) {
    assert(SHARED(REGION(rank), data) == NUMBER(TICK + (step)))
}

inline read_all(data, step) {
    atomic {
        i = 1;
        do
        :: i < RANKS -> read(OTHER(i), data, step); i++
        :: else -> break
        od;
        i = 0
    }
}

/* close_section, release_slot */
inline close_section() {
    if
    :: kind == ONE_SEGMENT -> store(OWN(FLAG(SLOT)), NUMBER(TICK + STEP_READ), 1)
    :: else
    fi;
    if
    :: (kind != ONE_SEGMENT || section + 1 == sections) && position % in_use == RELEASING_SLOT ->
        store(OWN(FIELD(BANK)), RELEASED_PASS, 1)
    :: else
    fi
}

inline all_read_phases() {
    if
    :: phase == 0 ->
#ifndef NO_READ_HANDSHAKE
        if
        :: kind == ONE_SEGMENT && section > 0 ->       /* run_phase */
            section--;
            heard_all(STEP_READ);
            atomic { section++; i = 0 }
        :: else
        fi;
#endif
        writable();
        copy_and_post(DATA(SLOT), STEP_IN)
    :: else ->
        heard_all(STEP_IN);
#ifdef RELEASE_BEFORE_READING
        close_section();
        read_all(DATA(SLOT), STEP_IN)
#else
        read_all(DATA(SLOT), STEP_IN);
        close_section()
#endif
    fi
}

inline tiled_phases() {
    if
    :: phase == 0 ->
        writable();
        copy_and_post(DATA(SLOT), STEP_IN)
    :: phase == 1 ->
        heard_all(STEP_IN);
        read_all(DATA(SLOT), STEP_IN);
        copy_and_post(SLICE(SLOT), STEP_RESULT)
    :: else ->
        heard_all(STEP_RESULT);
#ifdef RELEASE_BEFORE_READING
        close_section();
        read_all(SLICE(SLOT), STEP_RESULT)
#else
        read_all(SLICE(SLOT), STEP_RESULT);
        close_section()
#endif
    fi
}

/* tree.reduce_up, by a fan-in tree */
inline fan_in() {
    writable();
    i = 0;
    do
    :: HAS_CHILD(self, i, RADIX_IN) ->
        atomic { HEARD(FIRST_CHILD(self, RADIX_IN) + i, STEP_IN) -> i++ }
    :: else -> break
    od;
    atomic {
        i = 0;
        do
        :: HAS_CHILD(self, i, RADIX_IN) ->
            read(FIRST_CHILD(self, RADIX_IN) + i, DATA(SLOT), STEP_IN);
            i++
        :: else -> break
        od;
        i = 0
    }
    if
    :: self == 0 -> copy_and_post(DATA(SLOT), STEP_RESULT)
    :: else -> copy_and_post(DATA(SLOT), STEP_IN)
    fi
}

/* tree.pass_down, after it */
inline fan_out() {
    if
    :: self != 0 ->
        HEARD(PARENT(self, RADIX_OUT), STEP_RESULT);
        read(PARENT(self, RADIX_OUT), DATA(SLOT), STEP_RESULT);
        if
        :: HAS_CHILD(self, 0, RADIX_OUT) -> copy_and_post(DATA(SLOT), STEP_RESULT)
        :: else
        fi
    :: else
    fi;
    close_section()
}

/* tree.pass_down: a parent with children acquires its own slot before it reads. */
inline fan_out_section() {
    v = VIRTUAL(ROOT);
    if
    :: v != 0 -> HEARD(REAL(PARENT(v, RADIX_OUT), ROOT), STEP_IN)
    :: else
    fi;
    if
    :: HAS_CHILD(v, 0, RADIX_OUT) -> writable()
    :: else
    fi;
#ifdef RELEASE_BEFORE_READING
    close_section();
#endif
    if
    :: v != 0 -> read(REAL(PARENT(v, RADIX_OUT), ROOT), DATA(SLOT), STEP_IN)
    :: else
    fi;
    if
    :: HAS_CHILD(v, 0, RADIX_OUT) -> copy_and_post(DATA(SLOT), STEP_IN)
    :: else
    fi;
#ifndef RELEASE_BEFORE_READING
    close_section();
#endif
    v = 0
}

/* The line says which call this is at the first step only; then only the flag is stored. */
inline dissemination() {
    writable();
    i = 1;
    v = 1;
    store(OWN(DATA(SLOT)), TICK, 0);
    do
    :: v < RANKS ->
        store(OWN(FLAG(SLOT)), NUMBER(TICK + i), RELEASE);
        atomic {
            HEARD((self + RANKS - v) % RANKS, i) ->
            v = v * 2
        }
        assert(SHARED((self + RANKS - v / 2) % RANKS, DATA(SLOT)) == TICK);
        i++
    :: else -> break
    od;
    atomic { i = 0; v = 0 }
    close_section()
}

/* use_segments: this call's share of each bank; what lies beyond it is passed. */
inline use_segments() {
    in_use = share[done % PERIOD];
    if
    :: slot >= in_use ->
#ifndef BANK_LEFT_UNRELEASED
        store(OWN(FIELD(bank)), RELEASED_NUMBER(pass), 1);
#endif
        atomic { slot = 0; bank++; wrap_banks() }
    :: else
    fi
}

inline wrap_banks() {
    if
    :: bank == BANKS -> bank = 0; pass = NUMBER(pass + 1)
    :: else
    fi
}

inline plan_call() {
    use_segments();
    d_step {
        kind = script[done % PERIOD];
        sections = SECTIONS;
        shares = 0;                                     /* share_regions */
        if
        :: RANKS == 2 && kind >= FAN_OUT(0) ->
            shares = (writer == 1 - ROOT);
            writer = ROOT
        :: else
        fi;
        if
        :: kind == TILED -> phases = 3
        :: kind == ALL_READ || kind == FAN_IN_FAN_OUT || kind == ONE_SEGMENT -> phases = 2
        :: else -> phases = 1
        fi;
        stride = phases;                                /* by window, first */
        if
        :: kind == ONE_SEGMENT -> stride = 1
        :: kind != ONE_SEGMENT && stride > MOST_IN_FLIGHT -> stride = MOST_IN_FLIGHT
        :: else
        fi;
        stride = (phases + stride - 1) / stride;
        if
        :: kind == DISSEMINATION -> sections = 1
        :: else
        fi;
        turn = 0;
        phase = 0
    }
}

/* Section k runs phase j in turn k * stride + j. */
#define RUNS_NOW (turn >= phase && (turn - phase) % stride == 0 && \
                  (turn - phase) / stride < sections)

inline open_section() {
    d_step {
        section = (turn - phase) / stride;
        position = bank * in_use + slot;
        if
        :: kind != ONE_SEGMENT -> position = position + section
        :: else
        fi
    }
}

proctype rank(byte self) {
    byte tick = START, pass = START, bank, slot, in_use, done;
    byte kind, phases, stride, sections, turn, phase, section, position, i, v;
    byte proven[BANKS];
    byte writer = NOBODY;
    bit shares;
    d_step {
        do
        :: i < BANKS -> proven[i] = NUMBER(START - 1); i++
        :: else -> break
        od;
        i = 0
    }
    do
    :: done < CALLS ->
        plan_call();
        do                                              /* advance */
        :: turn < (sections - 1) * stride + phases ->
            if
            :: RUNS_NOW ->
                open_section();
                if
                :: kind == ALL_READ || kind == ONE_SEGMENT -> all_read_phases()
                :: kind == TILED -> tiled_phases()
                :: kind == FAN_IN_FAN_OUT && phase == 0 -> fan_in()
                :: kind == FAN_IN_FAN_OUT && phase == 1 -> fan_out()
                :: kind == DISSEMINATION -> dissemination()
                :: else -> fan_out_section()
                fi
            :: else
            fi;
            atomic {
                section = 0;
                position = 0;
                phase++;
                if
                :: phase == phases -> phase = 0; turn++
                :: else
                fi
            }
        :: else -> break
        od;
        atomic {
            tick = NUMBER(tick + sections * SECTION_STEPS);
            i = sections;
            if
            :: kind == ONE_SEGMENT -> i = 1
            :: else
            fi;
            do                                          /* advance_cursor */
            :: i > 0 ->
                i--;
                slot++;
                if
                :: slot >= in_use -> slot = 0; bank++; wrap_banks()
                :: else
                fi
            :: else -> break
            od;
            in_use = 0;
            done++
        }
    :: else -> break
    od
}

/* init_team; the agreement at set-up follows it. */
init {
    byte i, word, choice;
    atomic {
        do
        :: i < RANKS * WORDS ->
            word = i % WORDS;
            if
            :: word < SLOTS || word >= FIELD(0) -> memory[i] = START
            :: else -> memory[i] = NOTHING
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < PERIOD ->
#ifdef ONLY
            choice = ONLY;
#else
            select(choice : 0 .. KINDS - 1);
#endif
            script[i] = choice;
            select(choice : 1 .. SEGMENTS);
            share[i] = choice;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < RANKS -> run rank(i); run memory_system(i); i++
        :: else -> break
        od;
        i = 0; word = 0; choice = 0
    }
}
