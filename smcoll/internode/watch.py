"""Whether the leaders of the other nodes live: a connection to each, which the kernel closes when
its process ends, however that comes. Who ends in good order says so before, and after which call of
each communicator.

Made once for a group of ranks and its placement on nodes, in agreement; where one leader can't have
its connections, none has, and a node that vanishes is noticed by ``Config.timeout`` only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Callable

from smcoll.internode.connections import Door
from smcoll.internode.placement import Placement
from smcoll.mpi import finalize

GOODBYE, END = b"!", b"\n"
MOST_LEFT = 1000                   # communicators that a goodbye tells of
LONGEST = 1 << 16                  # bytes of one
# Seconds until the leaders must have found each other. Where a firewall drops what they say, that
# long is waited once in a process.
CONNECT_WITHIN = 5.0

_HANGS_UP = select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLERR

# Kept until the end: a connection that closed before would look like a death.
_watches: list[Watch] = []
_unreachable: list[str] = []       # why connections could not be had before: it isn't tried again


class Watch:
    """A leader's connections to the leaders of the other nodes."""

    def __init__(self, connections: dict[int, socket.socket]):
        """``connections``: by the number of the node."""
        self.connections = connections
        self.dead: set[int] = set()
        # By a communicator's tag: which rank this one is there, and after which call it left it.
        self.left: dict[str, tuple[int, int]] = {}
        # The same of the leaders that said goodbye.
        self.ended: dict[str, dict[int, int]] = {}
        self.events = select.epoll()
        self.lock = threading.RLock()
        self.node_of = {}
        for node, connection in connections.items():
            self.node_of[connection.fileno()] = node
            self.events.register(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
        _watches.append(self)

    def look(self) -> set[int]:
        """The nodes whose leaders have died. Never waits; one system call where nothing is new."""
        # `with`, not acquire() and try: a signal handler's exception may come between those two.
        with self.lock:
            if not self.events.closed:
                for descriptor, event in self.events.poll(0):
                    self._hear(self.node_of[descriptor], event)
        return self.dead

    def _hear(self, node: int, event: int) -> None:
        """What a connection says. Nothing is taken out of it before all is there and understood: a
        signal handler may come between any two lines, and look, too."""
        connection = self.connections.get(node)
        if connection is None:
            return
        try:
            words = connection.recv(LONGEST, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            if self.connections.get(node) is not connection:
                return             # a signal handler's look has heard and closed it meanwhile
            words = b""            # reset: its process is gone
        if words.startswith(GOODBYE) and not words.endswith(END) and not event & _HANGS_UP:
            return                 # more is on its way
        if words.startswith(GOODBYE):
            # One that broke off, its process killed as it ended, tells no calls.
            with contextlib.suppress(ValueError):
                for tag, (rank, last) in json.loads(words[len(GOODBYE):]).items():
                    self.ended.setdefault(tag, {})[rank] = last
        else:
            self.dead.add(node)
        if self.connections.pop(node, None) is not None and not self.events.closed:
            self.events.unregister(connection)
            connection.close()

    def leave(self, tag: int, rank: int, last: int) -> None:
        """This leader, ``rank`` of the communicator, takes part in no call after ``last`` there."""
        self.left[str(tag)] = rank, last
        if len(self.left) > MOST_LEFT:
            del self.left[next(iter(self.left))]

    def who_ended(self, tag: int) -> dict[int, int]:
        """The leaders that ended in good order, and after which of the communicator's calls."""
        return self.ended.get(str(tag), {})

    def say_goodbye(self) -> None:
        """This process ends in good order: what becomes of it from now on is no death."""
        with self.lock:
            for connection in self.connections.values():
                with contextlib.suppress(OSError):
                    connection.send(GOODBYE + json.dumps(self.left).encode() + END)
            self._close()

    def _close(self) -> None:
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()
        self.events.close()


def say_goodbye() -> None:
    """This process ends in good order."""
    for watch in list(_watches):
        watch.say_goodbye()


def _close_in_child() -> None:
    # Else the connection would live as long as the child does, and the child would say goodbye.
    for watch in list(_watches):
        watch.lock = threading.RLock()
        watch._close()


finalize.before_the_end(finalize.TAKE_LEAVE, say_goodbye)
os.register_at_fork(after_in_child=_close_in_child)


def watch_leaders(comm, gather: Callable[[object, dict], list[dict]], placement: Placement,
                  rank: int) -> tuple[Watch | None, str]:
    """A leader's watch, None on other ranks; or, on all ranks alike, None and why. Collective.

    ``gather(comm, record)`` gives every rank's record.
    """
    node = placement.node_of[rank]
    leads = rank == placement.members[node][0]
    door, told, connections, watch = None, {}, {}, None
    problem: str | None = "given up"
    try:
        if leads:
            try:
                door, told = _open_door(node)
            except OSError as error:
                told = {"problem": f"rank {rank}: {error}"[:400]}
        records = [record["door"] for record in gather(comm, {"door": told})]
        problem = _first_problem(records)
        if problem is None:
            problem, told = "given up", {}
            if leads:
                doors = {record["number"]: record for record in records if record}
                try:
                    connections = door.connect(doors, CONNECT_WITHIN)
                    watch = Watch(connections)
                except OSError as error:
                    told = {"problem": f"rank {rank}: {error}"[:400]}
            problem = _first_problem(gather(comm, told))
    finally:
        if door is not None:
            door.close()
        if problem is not None:
            for connection in connections.values():
                connection.close()
            if watch is not None:
                watch.events.close()
                _watches.remove(watch)
    if problem is not None:
        _unreachable.append(problem)
        return None, problem
    return watch, ""


def _open_door(number: int) -> tuple[Door, dict]:
    """A door and its record; OSError where there can be none, or connections failed before."""
    if _unreachable:
        raise OSError(_unreachable[0])
    door = Door(number)
    try:
        return door, door.record()
    except OSError:
        door.close()
        raise


def _first_problem(records: list[dict]) -> str | None:
    return next((record["problem"] for record in records if "problem" in record), None)
