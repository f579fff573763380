/* Exchange slots and inline slots: smcoll/coll/all_read.pyx, barrier.pyx (barrier_all_read,
 * prove_bank), barrier.pxd (post_line, acquire_slot, wait_line, release_slot).
 *
 * Every sequence of PERIOD calls, repeated up to CALLS calls: exchange (Allreduce, Barrier,
 * Allgather, Reduce_scatter), Bcast and Reduce with any root, and Scan. FOREVER: exchanges only,
 * without end. One word stands for all that is stored
 * before the flag: payload, call, signature, length. Its value is the call's number, so a reader
 * that finds another value has lost a message, reads a stale one, or was let through by the flag
 * of another call.
 *
 * Mutants (each a macro): RELAXED_FLAG (with WEAK), POST_BEFORE_COPY, ONE_EXCHANGE_SLOT,
 * SLOTS_BY_CALL, NO_BANK_BARRIER, BANK_ONE_ROUND_EARLY, EPOCH_TOO_HIGH, EPOCH_TOO_LOW,
 * RELEASE_BEFORE_READING, RELEASE_AT_FIRST_SLOT (SEGMENTS > 1), WAIT_ONE_TOO_LOW,
 * READ_BEFORE_WAITING (a dropped acquire).
 */

#ifndef BANKS
#define BANKS 2
#endif
#ifndef SEGMENTS
#define SEGMENTS 1
#endif
#ifndef PERIOD
#define PERIOD 3                      /* calls until the sequence repeats */
#endif
#ifndef CALLS
#define CALLS 9
#endif
#ifndef RADIX
#define RADIX 1                       /* children of a parent: 1 is a chain */
#endif

#define SLOTS (BANKS * SEGMENTS)

/* The words of a rank. */
#define EXCHANGE_FLAG(parity) (parity)
#define EXCHANGE_DATA(parity) (2 + (parity))
#define ROOTED_FLAG(slot) (4 + (slot))
#define ROOTED_DATA(slot) (4 + SLOTS + (slot))
#define FIELD(bank) (4 + 2 * SLOTS + (bank))
#define WORDS (4 + 2 * SLOTS + BANKS)

#include "memory.pml"

/* Calls: 0 is an exchange, then Bcast from each root, Reduce to each root, the two Scans. */
#define EXCHANGE 0
#define BCAST(root) (1 + (root))
#define REDUCE(root) (1 + RANKS + (root))
#ifdef FOREVER
#define KINDS 1
#define MORE true
#else
#define SCAN (1 + 2 * RANKS)
#define CHAIN (2 + 2 * RANKS)
#define KINDS (3 + 2 * RANKS)
#define MORE (done < CALLS)
#endif
#define IS_BCAST(kind) ((kind) >= 1 && (kind) <= RANKS)
#define ROOT(kind) (((kind) - 1) % RANKS)

byte script[PERIOD];

/* trees.pxd: to_virtual, to_real; the tree is numbered breadth first. */
#define VIRTUAL(root) ((self + RANKS - (root)) % RANKS)
#define REAL(v, root) (((v) + (root)) % RANKS)
#define PARENT(v) (((v) - 1) / RADIX)
#define FIRST_CHILD(v) ((v) * RADIX + 1)
#define HAS_CHILD(v, i) (FIRST_CHILD(v) + (i) < RANKS && (i) < RADIX)

#ifdef ONE_EXCHANGE_SLOT
#define PARITY 0
#elif defined(SLOTS_BY_CALL)
#define PARITY (call & 1)
#else
#define PARITY (exchanges & 1)
#endif

/* Rooted calls of the mutant SLOTS_BY_CALL have no ring: the two exchange slots serve all. */
#ifdef SLOTS_BY_CALL
#define OWN_FLAG EXCHANGE_FLAG(call & 1)
#define OWN_DATA EXCHANGE_DATA(call & 1)
#define ROOTED_NUMBER call
#else
#define OWN_FLAG ROOTED_FLAG(slot)
#define OWN_DATA ROOTED_DATA(slot)
#define ROOTED_NUMBER rooted
#endif

/* pass_ of the slot under the cursor; what acquire_slot waits for; what release_slot stores. */
#define PASS NUMBER(START + used / SLOTS)
#ifdef BANK_ONE_ROUND_EARLY
#define WAITED_PASS NUMBER(PASS - 1)
#else
#define WAITED_PASS PASS
#endif
#if defined(EPOCH_TOO_HIGH)
#define RELEASED_PASS NUMBER(PASS + 2)
#elif defined(EPOCH_TOO_LOW)
#define RELEASED_PASS PASS
#else
#define RELEASED_PASS NUMBER(PASS + 1)
#endif
#ifdef RELEASE_AT_FIRST_SLOT
#define RELEASING_SLOT 0
#else
#define RELEASING_SLOT (SEGMENTS - 1)
#endif

#ifdef WAIT_ONE_TOO_LOW
#define WAITED(value) NUMBER((value) - 1)
#else
#define WAITED(value) (value)
#endif

/* wait_line, up to the point where the flag has been seen. */
inline wait_line(rank, flag, value) {
    REACHED(SHARED(rank, flag), WAITED(value))
}

/* The call compared, the payload read. */
inline read_line(rank, data) {
    assert(SHARED(rank, data) == call)
}

/* Payload and call, then the flag with release. */
inline publish(data, flag, value) {
#ifdef POST_BEFORE_COPY
    store(flag, value, RELEASE);
    store(data, call, 0)
#else
    store(data, call, 0);
    store(flag, value, RELEASE)
#endif
}

/* The next cursor position; `slot`, `bank` stand for the one before. */
inline advance_cursor() {
    rooted = NUMBER(rooted + 1);
    slot = used % SLOTS;
    bank = slot / SEGMENTS
}

/* acquire_slot: before writing there, everybody is through the bank's last round. */
inline acquire_slot() {
    skip;
#if !defined(NO_BANK_BARRIER) && !defined(SLOTS_BY_CALL)
    if
    :: proven[bank] == PASS
    :: else ->
        i = 1;
        do
        :: i < RANKS ->
            atomic {
                REACHED(SHARED((self + i) % RANKS, FIELD(bank)), WAITED_PASS) -> i++
            }
        :: else -> break
        od;
        atomic { proven[bank] = PASS; i = 0 }
    fi
#endif
}

/* release_slot: behind a bank's last slot, this rank's part of the nonblocking barrier. */
inline release_slot() {
    skip;
#ifndef SLOTS_BY_CALL
    if
    :: slot % SEGMENTS == RELEASING_SLOT -> store(FIELD(bank), RELEASED_PASS, 1)
    :: else
    fi
#endif
}

inline end_of_slot() {
    atomic { used++; slot = 0; bank = 0; v = 0; i = 0 }
}

/* allreduce_all_read_inline, barrier_all_read */
inline exchange() {
    d_step { exchanges = NUMBER(exchanges + 1); i = 1 }
    publish(EXCHANGE_DATA(PARITY), EXCHANGE_FLAG(PARITY), exchanges);
#ifdef READ_BEFORE_WAITING
    early = SHARED((self + 1) % RANKS, EXCHANGE_DATA(PARITY));
#endif
    do
    :: i < RANKS ->
        atomic {
            wait_line((self + i) % RANKS, EXCHANGE_FLAG(PARITY), exchanges) -> i++
        }
    :: else -> break
    od;
    atomic {
        i = 1;
        do
        :: i < RANKS -> read_line((self + i) % RANKS, EXCHANGE_DATA(PARITY)); i++
        :: else -> break
        od;
#ifdef READ_BEFORE_WAITING
        assert(early == call);
        early = 0;
#endif
        i = 0
    }
}

/* tree.broadcast_inline */
inline bcast(root) {
    d_step { advance_cursor(); v = VIRTUAL(root) }
    if
    :: v != 0 ->
        wait_line(REAL(PARENT(v), root), OWN_FLAG, ROOTED_NUMBER);
#ifdef RELEASE_BEFORE_READING
        release_slot();
#endif
        read_line(REAL(PARENT(v), root), OWN_DATA)
    :: else
    fi;
    if
    :: HAS_CHILD(v, 0) ->
        acquire_slot();
        publish(OWN_DATA, OWN_FLAG, ROOTED_NUMBER)
    :: else
    fi;
#ifdef RELEASE_BEFORE_READING
    if
    :: v == 0 -> release_slot()
    :: else
    fi;
#else
    release_slot();
#endif
    end_of_slot()
}

/* tree.reduce_inline */
inline reduce(root) {
    d_step { advance_cursor(); v = VIRTUAL(root); i = 0 }
    if
    :: v != 0 -> acquire_slot()
    :: else
    fi;
    do
    :: HAS_CHILD(v, i) ->
        atomic {
            wait_line(REAL(FIRST_CHILD(v) + i, root), OWN_FLAG, ROOTED_NUMBER) -> i++
        }
    :: else -> break
    od;
    skip;                          /* no jump may lead into a d_step */
#ifdef RELEASE_BEFORE_READING
    release_slot();
#endif
    d_step {
        i = 0;
        do
        :: HAS_CHILD(v, i) -> read_line(REAL(FIRST_CHILD(v) + i, root), OWN_DATA); i++
        :: else -> break
        od;
        i = 0
    }
    if
    :: v != 0 -> publish(OWN_DATA, OWN_FLAG, ROOTED_NUMBER)
    :: else
    fi;
#ifndef RELEASE_BEFORE_READING
    release_slot();
#endif
    end_of_slot()
}

/* scan_direct_inline */
inline scan() {
    advance_cursor();
    if
    :: self < RANKS - 1 ->
        acquire_slot();
        publish(OWN_DATA, OWN_FLAG, ROOTED_NUMBER)
    :: else
    fi;
    i = 0;
    do
    :: i < self -> atomic { wait_line(i, OWN_FLAG, ROOTED_NUMBER) -> i++ }
    :: else -> break
    od;
#ifdef RELEASE_BEFORE_READING
    release_slot();
#endif
    atomic {
        i = 0;
        do
        :: i < self -> read_line(i, OWN_DATA); i++
        :: else -> break
        od
    }
#ifndef RELEASE_BEFORE_READING
    release_slot();
#endif
    end_of_slot()
}

/* scan_chain_inline: what the neighbour posted is read for our own post, and once more for our
   result (Exscan). */
inline chain() {
    advance_cursor();
    if
    :: self > 0 ->
        atomic {
            wait_line(self - 1, OWN_FLAG, ROOTED_NUMBER) ->
            read_line(self - 1, OWN_DATA)
        }
    :: else
    fi;
    if
    :: self < RANKS - 1 ->
        acquire_slot();
        publish(OWN_DATA, OWN_FLAG, ROOTED_NUMBER)
    :: else
    fi;
#ifdef RELEASE_BEFORE_READING
    release_slot();
#endif
    if
    :: self > 0 -> read_line(self - 1, OWN_DATA)
    :: else
    fi;
#ifndef RELEASE_BEFORE_READING
    release_slot();
#endif
    end_of_slot()
}

proctype rank(byte self) {
    byte call = START, exchanges = START, rooted = START;
    byte used, slot, bank, v, i, step, done;
    byte proven[BANKS];
#ifdef READ_BEFORE_WAITING
    byte early;
#endif
    d_step {
        do
        :: i < BANKS -> proven[i] = NUMBER(START - 1); i++
        :: else -> break
        od;
        i = 0
    }
    do
    :: MORE ->
        call = NUMBER(call + 1);
        if
        :: script[step] == EXCHANGE -> exchange()
#ifndef FOREVER
        :: script[step] == SCAN -> scan()
        :: script[step] == CHAIN -> chain()
#endif
        :: IS_BCAST(script[step]) -> bcast(ROOT(script[step]))
        :: else -> reduce(ROOT(script[step]))
        fi;
        atomic {
            step = (step + 1) % PERIOD;
#ifndef FOREVER
            done++
#endif
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
            :: word < 2 || (word >= 4 && word < 4 + SLOTS) || word >= FIELD(0) -> memory[i] = START
            :: else -> memory[i] = NOTHING
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < PERIOD ->
            select(choice : 0 .. KINDS - 1);
            script[i] = choice;
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
