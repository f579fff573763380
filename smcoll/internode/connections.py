"""A TCP connection for each pair of processes on different hosts, made by all of them at once.

Each process opens a ``Door``, tells all others of it (``Door.record``, over MPI), and calls
``Door.connect`` with everybody's records: it connects to those before it and is called by those
behind it. Whoever comes to a door must know its token, which MPI brought; who is called answers
with the caller's. The door is closed when all are connected or time is up. Knows nothing of MPI.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import resource
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

TOKEN_BYTES = 16
# What a caller says first: the door's token, and its own number.
GREETING = struct.Struct(f"!{TOKEN_BYTES}sI")
MOST_ADDRESSES = 8
LOOPBACK = "127.0.0.1"
SIOCGIFADDR = 0x8915
GLOBAL_SCOPE = "00"                # of an address, in /proc/net/if_inet6


def addresses() -> list[str]:
    """This host's IP addresses, at most ``MOST_ADDRESSES``; loopback, for processes here, last."""
    found = [address for _, name in socket.if_nameindex() if (address := _ipv4(name)) is not None]
    table = Path("/proc/net/if_inet6")
    rows = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    found += [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows
              if row[3] == GLOBAL_SCOPE]
    return [*[address for address in found if address != LOOPBACK][:MOST_ADDRESSES - 1], LOOPBACK]


def _ipv4(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
        except OSError:
            return None            # none, or the interface is down
    return socket.inet_ntoa(answer[20:24])


def _check_room(descriptors: int) -> None:
    """OSError where so many would leave the program less than half of what it may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and descriptors > limit // 2:
        raise OSError(f"connections to all nodes need up to {descriptors} of {limit} descriptors")


class _Candidate:
    """A connection that may become one of ours: what it has said so far, and to whom it leads."""

    def __init__(self, connection: socket.socket, peer: int | None):
        self.connection = connection
        self.peer = peer           # None for who came to the door and has not said yet
        self.said = b""

    def hear(self, nbytes: int) -> bytes | None:
        """The first ``nbytes`` bytes once they are here; ConnectionError at the other's end."""
        try:
            part = self.connection.recv(nbytes - len(self.said))
        except BlockingIOError:
            return None
        if not part:
            raise ConnectionResetError
        self.said += part
        return self.said if len(self.said) == nbytes else None


class Door:
    """Where this process can be reached, until all that are expected are connected."""

    def __init__(self, number: int):
        """``number`` tells the processes apart. OSError where there can be no such socket."""
        self.number = number
        self.token = os.urandom(TOKEN_BYTES)
        both = socket.has_dualstack_ipv6()
        self.listener = socket.create_server(
            ("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both,
            backlog=socket.SOMAXCONN)
        self.listener.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.connected: dict[int, socket.socket] = {}

    def record(self) -> dict:
        """What the others must know of this door."""
        return {"number": self.number, "addresses": addresses(), "token": self.token.hex(),
                "port": self.listener.getsockname()[1]}

    def connect(self, records: Mapping[int, dict], limit: float) -> dict[int, socket.socket]:
        """A connection to everybody, by number.

        ``records``: those of all doors, by number. OSError, and no connection is left, after
        ``limit`` seconds or where that would take too many descriptors.
        """
        expected = set(records) - {self.number}
        end = time.monotonic() + limit
        try:
            _check_room(sum(1 + len(record["addresses"]) for record in records.values()))
            self.selector.register(self.listener, selectors.EVENT_READ)
            for peer in expected:
                if peer < self.number:
                    self._call(peer, records[peer])
            while missing := expected - set(self.connected):
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no connection to {len(missing)} of {len(expected)} other "
                                       f"nodes within {limit:g} s")
                for key, _ in self.selector.select(left):
                    self._go_on(key, records, missing)
        except BaseException:
            for connection in self.connected.values():
                connection.close()
            raise
        finally:
            self.close()
        return self.connected

    def close(self) -> None:
        """Let nobody in any more; what is connected stays."""
        if self.selector.get_map() is not None:
            for key in list(self.selector.get_map().values()):
                key.fileobj.close()
        self.selector.close()
        self.listener.close()

    def _call(self, peer: int, record: dict) -> None:
        """Begin to connect to all addresses of a peer: which of them leads there, nobody knows."""
        for address in record["addresses"]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                connection = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue           # no such family here
            connection.setblocking(False)
            connection.connect_ex((address, record["port"]))
            self.selector.register(connection, selectors.EVENT_WRITE,
                                   _Candidate(connection, peer))

    def _go_on(self, key: selectors.SelectorKey, records: Mapping[int, dict],
               missing: set[int]) -> None:
        """Something happened at the door or to a candidate."""
        candidate = key.data
        if candidate is None:
            # Who knocked may have left again.
            with contextlib.suppress(ConnectionAbortedError, BlockingIOError):
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                self.selector.register(connection, selectors.EVENT_READ,
                                       _Candidate(connection, None))
            return
        try:
            if key.events == selectors.EVENT_WRITE:
                self._greet(candidate, records)
            elif candidate.peer is None:
                self._check_greeting(candidate, records, missing)
            else:
                self._check_answer(candidate)
        except OSError:
            self.selector.unregister(candidate.connection)
            candidate.connection.close()

    def _greet(self, candidate: _Candidate, records: Mapping[int, dict]) -> None:
        connection = candidate.connection
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        connection.sendall(GREETING.pack(bytes.fromhex(records[candidate.peer]["token"]),
                                         self.number))
        self.selector.modify(connection, selectors.EVENT_READ, candidate)

    def _check_greeting(self, candidate: _Candidate, records: Mapping[int, dict],
                        missing: set[int]) -> None:
        said = candidate.hear(GREETING.size)
        if said is None:
            return
        token, peer = GREETING.unpack(said)
        known = hmac.compare_digest(token, self.token)
        if not known or peer not in missing or peer in self.connected or peer < self.number:
            raise ConnectionRefusedError
        candidate.connection.sendall(bytes.fromhex(records[peer]["token"]))
        self._keep(peer, candidate)

    def _check_answer(self, candidate: _Candidate) -> None:
        said = candidate.hear(TOKEN_BYTES)
        if said is None:
            return
        if not hmac.compare_digest(said, self.token) or candidate.peer in self.connected:
            raise ConnectionRefusedError
        self._keep(candidate.peer, candidate)

    def _keep(self, peer: int, candidate: _Candidate) -> None:
        self.selector.unregister(candidate.connection)
        self.connected[peer] = candidate.connection
