"""What ranks of different nodes tell each other beside the messages of their calls: that one gave
up, which calls it was in; and what the leaders' connections tell of who died or ended.

Nothing here waits. What came is looked at in long waits, through ``look_around``, and where MPI
reports a death.
"""

import contextlib
import json
import os
import time

from mpi4py import MPI

from libc.stdint cimport uint64_t

from smcoll.base.signature cimport history_with

from smcoll.errors import Error, MismatchError, PeerError, WaitTimeout
from smcoll.sync.calls import describe_call

cdef enum:
    ALARM = 4096                   # bytes
    ALARMS = 0                     # tags, from the first on
    INQUIRIES = 1
    PROBES_AT_THE_END = 3

# After how long (s) in a wait a leader asks the others; then after twice that, and so on.
ASK_AFTER = 1.0
# How long (s) a wait may be in a call that completes though ranks that are ahead gave up.
COMPLETES_WITHIN = 2.0

# What the other nodes raise; for all else PeerError, as the ranks of the same node.
_KINDS = {kind.__name__: kind for kind in (MismatchError, PeerError, WaitTimeout)}
_being_sent = []                   # by communicators that are gone
# What the calls of an MPI that survives deaths (ULFM) raise after one; where mpi4py knows of them.
_DEATHS = {getattr(MPI, name, MPI.ERR_UNKNOWN)
           for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING")} - {MPI.ERR_UNKNOWN}


cdef class Notices:
    """One rank's of a communicator that spans nodes."""

    def __cinit__(self, comm, int tag, placement, leaders=None, unwatched=""):
        """``leaders``: a leader's ``Watch``, else None; ``unwatched``: why no leader has one."""
        self.comm = comm
        self.tag = tag
        self.placement = placement
        self.leaders = leaders
        self.unwatched = unwatched
        self.told = []
        self.owner_process = os.getpid()
        self.status = MPI.Status()
        self.alarm_text = bytearray(ALARM)
        self.alarm = comm.Irecv(self.alarm_text, MPI.ANY_SOURCE, tag + ALARMS)

    cdef void begin(self, uint64_t number, uint64_t counted, uint64_t signature, uint64_t total):
        """The call that this rank is in from now on."""
        self.call.history = history_with(
            self.call.history, self.call.signature, self.call.total)
        self.call.number, self.call.signature, self.call.total = number, signature, total
        self.call.counted = counted
        self.calls[number % REMEMBERED] = self.call

    def look_around(self, seconds):
        """In a wait that is ``seconds`` long: raise what the others told, ask those who lead."""
        self.check_alarm(seconds)
        if self.leaders is not None:
            self.check_leaders()
            self.check_ended()
            if seconds > ASK_AFTER:
                self.inquire()
            self.take_in()

    # ------------------------------------------------------------------ alarms

    def announce_failure(self, error, int mine, int blamed, uint64_t since):
        """Tell the other nodes, its counterpart on each, that this rank gave up, and for whom.

        ``since``: the first call that others can't complete either. The counterparts tell their
        own nodes in shared memory. A rank gives up once, so the alarm goes round once.
        """
        if self.gave_up:
            return
        self.gave_up = True
        kind = type(error).__name__ if type(error).__name__ in _KINDS else "PeerError"
        was_ended = getattr(error, "ended", False)
        gave_up = not was_ended and (type(error).__name__ != kind
                                     or getattr(error, "gave_up", False))
        text = str(error) if isinstance(error, Error) else (
            f"rank {mine} gave the communicator up: {type(error).__name__}")
        told = json.dumps({"kind": kind, "text": text[:ALARM // 8], "blamed": blamed,
                           "ended": was_ended, "gave_up": gave_up,
                           "since": since}).encode()
        left_out = self.presumed_dead(error, blamed) | {self.placement.node_of[mine]}
        ended = set() if self.leaders is None else set(self.leaders.who_ended(self.tag))
        if was_ended or gave_up:
            ended.add(blamed)      # it knows, and may be gone
        for node in range(self.placement.nodes):
            peer = self.placement.counterpart(mine, node)
            if peer in ended:
                # The next one there, if any: who is alone needs no news.
                peer = next((mate for mate in self.placement.members[node] if mate not in ended),
                            -1)
            if node not in left_out and peer >= 0:
                # Who can't be told is told by nobody: the others are, and this rank's error stands.
                with contextlib.suppress(MPI.Exception):
                    self.told.append((told, self.comm.Isend(told, peer, self.tag + ALARMS)))

    def presumed_dead(self, error, int blamed):
        """The nodes that are told nothing: MPICH's Isend to a dead rank was seen to hang.

        A node of which another rank died, and that lives, knows it by itself. Whether one that did
        not come in time lives is known only where the leaders watch each other.
        """
        dead = set() if self.leaders is None else set(self.leaders.look())
        if ((isinstance(error, PeerError) and not error.ended and not error.gave_up)
                or (self.unwatched and isinstance(error, WaitTimeout))):
            dead.add(self.placement.node_of[blamed])
        return dead

    cdef int check_alarm(self, double seconds) except -1:
        """Raise what a rank of another node gave up for, in this call or an earlier one.

        A call before that one completes, so it is not disturbed, unless a wait in it is long: if
        the ranks disagree, it is for what nobody sends.
        """
        cdef bint heard = False
        if self.alarm is None:
            self.probe_for_alarms()
        try:
            heard = self.alarm is not None and self.alarm.Test()
        except MPI.Exception as error:
            # It could come from the dead, too. Who that is, the leaders' connections know.
            if error.Get_error_class() not in _DEATHS:
                raise
            if self.alarm == MPI.REQUEST_NULL:
                self.alarm = None
        if heard:
            self.alarm = None
            self.hear(self.alarm_text)
        told = self.heard
        if told is not None and (told["since"] <= self.call.number or seconds > COMPLETES_WITHIN):
            error = _KINDS[told["kind"]](told["text"])
            error.blamed = told["blamed"]
            error.ended = told["ended"]
            error.gave_up = told["gave_up"]
            error.passed_on = True
            error.since = told["since"]
            raise error
        return 0

    cdef hear(self, text):
        told = json.loads(bytes(text).rstrip(b"\0"))
        if self.heard is None or told["since"] < self.heard["since"]:
            self.heard = told

    cdef int probe_for_alarms(self) except -1:
        """Further ones, behind the first: a death may follow what concerns later calls only."""
        try:
            while self.comm.Iprobe(MPI.ANY_SOURCE, self.tag + ALARMS, self.status):
                text = bytearray(self.status.Get_count())
                self.comm.Recv(text, self.status.Get_source(), self.tag + ALARMS)
                self.hear(text)
        except MPI.Exception as error:
            if error.Get_error_class() not in _DEATHS:
                raise
        return 0

    # ------------------------------------------------------------------ inquiries

    cdef int inquire(self) except -1:
        """Tell the other leaders, now and then, which calls this rank was in.

        Where ranks disagree about a root, say, both sides may wait for messages that nobody sends.
        Leaders only, and only where they watch each other, for these are known to live.
        """
        cdef int i
        now = time.monotonic()
        if self.asked_in != self.call.number:
            self.asked_in = self.call.number
            self.ask_again = now
            self.asking_pause = ASK_AFTER
        if now < self.ask_again:
            return 0
        self.ask_again = now + self.asking_pause
        self.asking_pause *= 2
        self.asked += 1
        self.told = [sent for sent in self.told if not is_over(sent[1])]
        calls = [(self.calls[i].number, self.calls[i].signature, self.calls[i].total,
                  self.calls[i].counted)
                 for i in range(REMEMBERED)]
        text = json.dumps(calls).encode()
        for node in range(self.placement.nodes):
            peer = self.placement.members[node][0]
            if peer != self.comm.Get_rank() and peer not in self.leaders.who_ended(self.tag):
                try:
                    self.told.append((text, self.comm.Isend(text, peer, self.tag + INQUIRIES)))
                except MPI.Exception as error:
                    self.check_death(error, peer)
                    raise
        return 0

    cdef int take_in(self) except -1:
        """Raise what inquiries show: the same call was another collective here.

        A call that this rank has not come to is in the next inquiry again. Probed for, since a
        posted receive from any rank that was posted anew got lost in MPICH now and then.
        """
        while True:
            try:
                if not self.comm.Iprobe(MPI.ANY_SOURCE, self.tag + INQUIRIES, self.status):
                    return 0
                text = bytearray(self.status.Get_count())
                peer = self.status.Get_source()
                self.comm.Recv(text, peer, self.tag + INQUIRIES)
            except MPI.Exception as error:
                if error.Get_error_class() not in _DEATHS:
                    raise
                return 0
            self.compare_calls(peer, json.loads(text))

    cdef int compare_calls(self, int peer, list calls) except -1:
        """``calls``: the last ones of ``peer``; MismatchError for the first that was another."""
        cdef CallRecord theirs
        cdef CallRecord *ours
        for number, signature, total, counted in sorted(calls):
            theirs.number, theirs.signature, theirs.total = number, signature, total
            theirs.counted = counted
            ours = &self.calls[theirs.number % REMEMBERED]
            if ours.number == theirs.number and not is_same_call(ours, &theirs):
                error = self.disagreement(peer, &theirs)
                error.blamed = peer
                raise error
        return 0

    cdef disagreement(self, int peer, const CallRecord *theirs):
        """The error for what ``peer`` called, in our call of that number or in this one."""
        cdef CallRecord *ours = &self.calls[theirs.number % REMEMBERED]
        rank = self.comm.Get_rank()
        if is_same_call(ours, theirs):
            if ours.history != theirs.history:
                # They did not meet in the call that they disagree about.
                error = MismatchError(
                    f"ranks disagree about a collective before number {ours.counted}, in which "
                    f"ranks {rank} and {peer} both called {in_words(ours)}")
                error.since = 1    # which call it was is not known here
                return error
            ours = &self.call
        elif ours.number != theirs.number:
            ours = &self.call
        mine, other = in_words(ours), in_words(theirs)
        if mine == other:
            other += f" as its call {theirs.counted}"
        error = MismatchError(
            f"ranks disagree about collective number {ours.counted}: rank {rank} called {mine}, "
            f"rank {peer} called {other}")
        error.since = min(ours.number, theirs.number)
        return error

    # ------------------------------------------------------------------ the dead, and who ended

    cdef int check_ended(self) except -1:
        """Who ended before this call can't take part in it."""
        for rank, last in self.leaders.who_ended(self.tag).items():
            if last < self.call.number:
                self.blame(rank, f"rank {rank} has ended", True, last + 1)
        return 0

    cdef int check_leaders(self) except -1:
        for node in self.leaders.look() if self.leaders is not None else ():
            leader = self.placement.members[node][0]
            self.blame(leader, f"rank {leader} has died, {self.placement.role(leader)}")
        return 0

    cdef int check_death(self, error, int peer) except -1:
        """Raise who died, where an MPI that survives that says so of a message to or from ``peer``.
        """
        if error.Get_error_class() in _DEATHS:
            self.check_leaders()
            self.blame(peer, f"rank {peer} has died")
        return 0

    def call_in_words(self):
        """The call that this rank is in."""
        return f"call {self.call.counted}, {in_words(&self.call)}"

    cdef int blame(self, int rank, what, bint ended=False, uint64_t since=0) except -1:
        error = PeerError(
            f"{what}, as rank {self.comm.Get_rank()} found during {self.call_in_words()}")
        error.blamed = rank
        error.ended = ended
        error.since = since
        raise error

    # ------------------------------------------------------------------ the end

    def leave_in_call(self, uint64_t call):
        """This process ends while another thread of it, or code below, is in the call."""
        if self.leaders is not None and not self.gave_up and not MPI.Is_finalized():
            self.leaders.leave(self.tag, self.comm.Get_rank(), call - 1)

    def close(self):
        """Nothing is expected any more. Local."""
        # A forked child must leave its parent's MPI alone.
        if os.getpid() == self.owner_process and not MPI.Is_finalized():
            # What was told meanwhile shall not lie in MPI's queue for ever. A probe that finds
            # nothing drives MPI; the next one finds what that brought.
            try:
                for _ in range(PROBES_AT_THE_END):
                    self.take_in()
            except MismatchError as error:
                # Who asked waits, and nobody else here would tell it.
                self.announce_failure(error, self.comm.Get_rank(), error.blamed, error.since)
            except MPI.Exception:
                pass               # the end comes all the same
            _being_sent.extend(sent for sent in self.told if not is_over(sent[1]))
            self.told = []
            if self.leaders is not None and not self.gave_up:
                self.leaders.leave(self.tag, self.comm.Get_rank(), self.call.number)
            if self.alarm is not None:
                # After a death some MPIs say so here, too.
                with contextlib.suppress(MPI.Exception):
                    self.alarm.Cancel()
                    self.alarm.Wait()
        self.alarm = None


cdef bint is_over(request):
    try:
        return request.Test()
    except MPI.Exception:
        return True                # an error is an end, too


cdef in_words(const CallRecord *call):
    """What was called; what MPI carries out has no signature here."""
    return describe_call(call.signature, call.total) if call.signature else "what MPI carries out"
