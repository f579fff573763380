/* Streams between pairs of ranks: smcoll/coll/streams.pyx (send_more, receive_more, may_write,
 * give_credit, something_moves), with all messages of a call moved in both directions.
 *
 * CALLS calls (FOREVER: without end). In each, every rank has a message to every other (Alltoall)
 * and chooses its length, 1 to LONGEST cells: only the first cell says it. A cell's word stands
 * for cell or chunk, call and length; it carries the call (modulo 4), the length and the number of
 * its piece, so a reader that finds another piece or call has lost one or reads a stale one. With
 * IN_PLACE what arrives may overwrite only what has left (Transfer.behind). The order in which a
 * rank tries its messages is left open, so every order that the code may take is among the runs.
 *
 * Mutants: RELAXED_FLAG (with WEAK), POST_BEFORE_COPY, CREDIT_BEFORE_READING, ONE_CELL_TOO_MANY,
 * NO_CREDIT, CREDIT_TOO_HIGH, SEND_ALL_FIRST, OVERWRITES_WHAT_IT_SENDS (with IN_PLACE),
 * IGNORES_LENGTH.
 *
 * With IN_PRIVATE_MEMORY a message may be one cell that says where it lies; its sender waits for the
 * credit and changes it then. Its receiver reads it there or, beside the credit, asks for pieces.
 * Mutants: OWNER_DOES_NOT_WAIT, REFUSES_AFTER_CREDIT, NO_LOOK_AT_REFUSAL.
 */

#ifndef CELLS
#define CELLS 2
#endif
#ifndef LONGEST
#define LONGEST 3
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifdef FOREVER
#define MORE true
#else
#define MORE (done < CALLS)
#endif

/* The words of a rank: for each other rank (1 .. RANKS - 1 places further) a ring, and a credit. */
#define OTHERS (RANKS - 1)
#define RING(distance) (((distance) - 1) * CELLS)
#define FLAG(distance, count) (RING(distance) + (count) % CELLS)
#define DATA(distance, count) (OTHERS * CELLS + RING(distance) + (count) % CELLS)
#define CREDIT(distance) (2 * OTHERS * CELLS + (distance) - 1)
#ifdef IN_PRIVATE_MEMORY
#define REFUSAL(distance) (2 * OTHERS * CELLS + OTHERS + (distance) - 1)
#define LIES_AT(distance) (2 * OTHERS * CELLS + 2 * OTHERS + (distance) - 1)
#define WORDS (2 * OTHERS * CELLS + 3 * OTHERS)
#else
#define WORDS (2 * OTHERS * CELLS + OTHERS)
#endif

#include "memory.pml"

/* Rank and, seen from it, our own place. */
#define PEER(distance) ((self + (distance)) % RANKS)
#define BACK(distance) (RANKS - (distance))

#define PIECE(call, length, number) (((call) & 3) * 16 + (length) * 4 + (number))
#define LENGTH_IN(piece) (((piece) / 4) & 3)

/* One message each way with the peer at each distance. */
typedef Transfer {
    byte sent;                  /* of the stream, since set-up */
    byte received;
    byte outgoing;              /* pieces of this call's message, 0: all gone */
    byte out_done;
    byte incoming;              /* 0: not begun */
    byte in_done;
    bool in_finished;
    bool in_pieces;             /* this call's message to it goes in cells */
    bool published              /* it lies in private memory, and waits for its reader */
}

#if defined(NO_CREDIT)
#define HAS_CREDIT(d) true
#elif defined(ONE_CELL_TOO_MANY)
#define HAS_CREDIT(d) REACHED(SHARED(PEER(d), CREDIT(BACK(d))), NUMBER(with[d].sent - CELLS))
#else
#define HAS_CREDIT(d) REACHED(SHARED(PEER(d), CREDIT(BACK(d))), NUMBER(with[d].sent + 1 - CELLS))
#endif

#ifdef OWNER_DOES_NOT_WAIT
#define WAS_READ(d) true
#else
#define WAS_READ(d) REACHED(SHARED(PEER(d), CREDIT(BACK(d))), with[d].sent)
#endif
#define MAY_SEND(d) (with[d].outgoing != 0 && (with[d].published -> WAS_READ(d) : HAS_CREDIT(d)))
#define LIES_ELSEWHERE 64             /* marks such a cell */

#define ARRIVED(d) REACHED(SHARED(PEER(d), FLAG(BACK(d), with[d].received + 1)), \
                           NUMBER(with[d].received + 1))
/* Both messages of a pair are equally long in place, and so are their pieces. */
#if defined(IN_PLACE) && !defined(OVERWRITES_WHAT_IT_SENDS)
#define OUT_OF_THE_WAY(d) (with[d].outgoing == 0 || with[d].out_done > with[d].in_done)
#else
#define OUT_OF_THE_WAY(d) true
#endif
#ifdef SEND_ALL_FIRST
#define ALL_SENT (unsent == 0)
#else
#define ALL_SENT true
#endif
#define MAY_RECEIVE(d) (!with[d].in_finished && ARRIVED(d) && OUT_OF_THE_WAY(d) && ALL_SENT)

/* send_more: a message in private memory */
inline publish_message(d) {
    store(LIES_AT(d), call, 0);
    store(DATA(d, with[d].sent + 1), LIES_ELSEWHERE + PIECE(call, with[d].outgoing, 0), 0);
    store(FLAG(d, with[d].sent + 1), NUMBER(with[d].sent + 1), RELEASE);
    d_step { with[d].sent = NUMBER(with[d].sent + 1); with[d].published = true }
}

/* was_refused, once it was_read */
inline take_it_back(d) {
    atomic {
        with[d].published = false;
#ifdef NO_LOOK_AT_REFUSAL
        refused = false;
#else
        refused = SHARED(PEER(d), REFUSAL(BACK(d))) == with[d].sent;
#endif
    }
    if
    :: refused -> with[d].in_pieces = true
    :: else ->
        store(LIES_AT(d), NOTHING, 0);
        atomic { with[d].outgoing = 0; unsent-- }
    fi;
    refused = false
}

/* receive_more: read_through_kernel, or not */
inline receive_elsewhere(d) {
    d_step {
        piece = SHARED(PEER(d), DATA(BACK(d), with[d].received + 1)) - LIES_ELSEWHERE;
        with[d].incoming = LENGTH_IN(piece);
        assert(piece == PIECE(call, with[d].incoming, 0));
        with[d].received = NUMBER(with[d].received + 1);
        piece = 0
    }
    if
    :: assert(SHARED(PEER(d), LIES_AT(BACK(d))) == call);
       store(CREDIT(d), with[d].received, 1);
       atomic { with[d].in_finished = true; unreceived-- }
    :: true ->
#ifdef REFUSES_AFTER_CREDIT
       store(CREDIT(d), with[d].received, 1);
       store(REFUSAL(d), with[d].received, 1)
#else
       store(REFUSAL(d), with[d].received, 0);
       store(CREDIT(d), with[d].received, 1)
#endif
    fi
}

/* send_more, one cell */
inline send_piece(d) {
#ifdef IN_PLACE
    assert(with[d].in_done <= with[d].out_done);
#endif
#ifdef POST_BEFORE_COPY
    store(FLAG(d, with[d].sent + 1), NUMBER(with[d].sent + 1), RELEASE);
#endif
    store(DATA(d, with[d].sent + 1), PIECE(call, with[d].outgoing, with[d].out_done), 0);
#ifndef POST_BEFORE_COPY
    store(FLAG(d, with[d].sent + 1), NUMBER(with[d].sent + 1), RELEASE);
#endif
    d_step {
        with[d].sent = NUMBER(with[d].sent + 1);
        with[d].out_done++;
        if
        :: with[d].out_done == with[d].outgoing -> with[d].outgoing = 0; unsent--
        :: else
        fi
    }
}

#ifdef CREDIT_TOO_HIGH
#define READ_SO_FAR(d) NUMBER(with[d].received + 1)
#else
#define READ_SO_FAR(d) with[d].received
#endif

/* give_credit: half a ring at a time. */
inline give_credit(d) {
    if
    :: with[d].received % (CELLS / 2) == 0 -> store(CREDIT(d), READ_SO_FAR(d), 1)
    :: else
    fi
}

#ifdef IGNORES_LENGTH
#define LAST_PIECE(d) (with[d].in_done == LONGEST)
#else
#define LAST_PIECE(d) (with[d].in_done == with[d].incoming)
#endif

/* receive_more, one cell */
inline receive_piece(d) {
#ifdef CREDIT_BEFORE_READING
    with[d].received = NUMBER(with[d].received + 1);
    give_credit(d);
    with[d].received = NUMBER(with[d].received - 1);
#endif
    d_step {
        piece = SHARED(PEER(d), DATA(BACK(d), with[d].received + 1));
        if
        :: with[d].incoming == 0 -> with[d].incoming = LENGTH_IN(piece)
        :: else
        fi;
        assert(piece == PIECE(call, with[d].incoming, with[d].in_done));
        with[d].in_done++;
        with[d].received = NUMBER(with[d].received + 1);
        if
        :: LAST_PIECE(d) -> with[d].in_finished = true; unreceived--
        :: else
        fi;
        piece = 0
    }
#ifndef CREDIT_BEFORE_READING
    give_credit(d)
#endif
}

inline begin_exchange() {
    d = 1;
    do
    :: d < RANKS ->
        select(length : 1 .. LONGEST);
        atomic {
            with[d].outgoing = length;
            with[d].out_done = 0;
            with[d].incoming = 0;
            with[d].in_done = 0;
            with[d].in_finished = false;
            with[d].in_pieces = false;
            d++
        }
    :: else -> break
    od;
    atomic { d = 0; length = 0; unsent = OTHERS; unreceived = OTHERS }
}

#ifdef IN_PRIVATE_MEMORY
inline send(d) {
    if
    :: with[d].published -> take_it_back(d)
    :: !with[d].published && !with[d].in_pieces -> publish_message(d)
    :: !with[d].published -> with[d].in_pieces = true; send_piece(d)
    fi
}
#define ELSEWHERE(d) (SHARED(PEER(d), DATA(BACK(d), with[d].received + 1)) >= LIES_ELSEWHERE)
inline receive(d) {
    if
    :: ELSEWHERE(d) -> receive_elsewhere(d)
    :: else -> receive_piece(d)
    fi
}
#else
#define send send_piece
#define receive receive_piece
#endif

proctype rank(byte self) {
    bool refused;
    byte call, done, d, length, piece, unsent, unreceived;
    Transfer with[RANKS];
    d_step {
        do
        :: d < RANKS -> with[d].sent = START; with[d].received = START; d++
        :: else -> break
        od;
        d = 0
    }
    do
    :: MORE ->
        atomic {
            call = (call + 1) & 3;
#ifndef FOREVER
            done++;
#endif
            begin_exchange()
        }
        do
        :: unsent + unreceived > 0 ->
            if
            :: atomic { MAY_SEND(1) -> d = 1 } send(d)
            :: atomic { MAY_RECEIVE(1) -> d = 1 } receive(d)
#if RANKS > 2
            :: atomic { MAY_SEND(2) -> d = 2 } send(d)
            :: atomic { MAY_RECEIVE(2) -> d = 2 } receive(d)
#endif
            fi;
            d = 0
        :: else -> break
        od
    :: else -> break
    od
}

/* init_streams; the agreement at reservation follows it. */
init {
    byte i, word;
    atomic {
        do
        :: i < RANKS * WORDS ->
            word = i % WORDS;
            if
            :: word < OTHERS * CELLS || word >= 2 * OTHERS * CELLS -> memory[i] = START
            :: else -> memory[i] = NOTHING
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < RANKS -> run rank(i); run memory_system(i); i++
        :: else -> break
        od;
        i = 0; word = 0
    }
}
