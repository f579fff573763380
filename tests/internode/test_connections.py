"""Connections between leaders: only who knows the token gets one; only a death looks like one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import pytest

from smcoll.internode import connections
from smcoll.internode.connections import GREETING, TOKEN_BYTES, Door
from smcoll.internode.watch import Watch


def connect_all(doors, records, limit=20.0):
    """What each door's ``connect`` ended with, all at the same time."""
    results = {}

    def run(door):
        try:
            results[door.number] = door.connect(records, limit)
        except OSError as error:
            results[door.number] = error

    threads = [threading.Thread(target=run, args=(door,)) for door in doors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture
def watches():
    """Three leaders' watches over each other, in this one process."""
    doors = [Door(number) for number in range(3)]
    results = connect_all(doors, {door.number: door.record() for door in doors})
    made = [Watch(results[number]) for number in range(3)]
    yield made
    for watch in made:
        watch.say_goodbye()


def seen(watch, wanted, seconds=5.0):
    end = time.monotonic() + seconds
    while watch.look() != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return watch.look()


def test_everybody_is_connected_with_everybody_and_the_doors_are_shut(watches):
    for number, watch in enumerate(watches):
        assert set(watch.connections) == {0, 1, 2} - {number}
        assert watch.look() == set()
        assert not any(os.get_inheritable(connection.fileno())
                       for connection in watch.connections.values())


def test_an_end_without_goodbye_is_a_death_and_one_with_it_is_not(watches):
    watches[1].say_goodbye()
    for connection in watches[2].connections.values():
        connection.shutdown(socket.SHUT_RDWR)      # as the kernel does for who died
    assert seen(watches[0], {2}) == {2}
    deadline = time.monotonic() + 5
    while 1 in watches[0].connections and time.monotonic() < deadline:
        watches[0].look()
    assert 1 not in watches[0].connections and watches[0].look() == {2}


def test_a_forked_child_keeps_no_connection(watches):
    ours = [connection.fileno() for connection in watches[0].connections.values()]
    child = os.fork()
    if child == 0:
        open_ones = 0
        for descriptor in ours:
            with contextlib.suppress(OSError):
                os.fstat(descriptor)
                open_ones += 1
        os._exit(open_ones)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen(watches[1], set(), 0.2) == set()


def test_who_does_not_know_the_token_is_not_let_in():
    doors = [Door(0), Door(1)]
    records = {door.number: door.record() for door in doors}
    strangers = []
    for said in (GREETING.pack(bytes(TOKEN_BYTES), 1), GREETING.pack(doors[0].token, 0), b"GET /"):
        stranger = socket.create_connection(("127.0.0.1", records[0]["port"]))
        stranger.sendall(said)
        strangers.append(stranger)
    results = connect_all(doors, records)
    assert set(results[0]) == {1} and set(results[1]) == {0}
    results[0][1].sendall(b"x")
    results[1][0].settimeout(5)
    assert results[1][0].recv(1) == b"x"
    for stranger in strangers:
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", records[0]["port"]), timeout=5)
    for connected in results.values():
        for connection in connected.values():
            connection.close()


def test_nobody_is_waited_for_beyond_the_limit():
    alone, missing = Door(1), Door(0)
    record = missing.record()
    missing.close()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="1 of 1 other nodes"):
        alone.connect({0: record, 1: alone.record()}, 0.2)
    assert 0.2 <= time.monotonic() - began < 10


def test_too_many_descriptors_are_refused_before_any_is_taken(monkeypatch):
    monkeypatch.setattr(connections.resource, "getrlimit", lambda which: (10, 10))
    door = Door(0)
    records = {number: door.record() for number in range(5)}
    with pytest.raises(OSError, match="descriptors"):
        door.connect(records, 5)
    assert not door.connected


def test_addresses_end_with_loopback_and_can_be_connected_to():
    assert connections.addresses()[-1] == "127.0.0.1"
    assert len(connections.addresses()) <= connections.MOST_ADDRESSES


@pytest.mark.parametrize("pieces", [
    [b'!{"5": [2, 7]}\n'], [b"!", b'{"5": [2', b', 7]}\n'], [b"!"], [b"!{]\n"],
])
def test_a_goodbye_says_after_which_call_as_far_as_it_arrives(pieces):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    watching = Watch({1: ours})
    for piece in pieces:
        assert watching.look() == set() and watching.who_ended(5) == {}
        theirs.send(piece)
    theirs.close()
    assert watching.look() == set() and watching.look() == set()
    assert watching.who_ended(5) == ({2: 7} if pieces[-1].endswith(b"7]}\n") else {})
    assert watching.connections == {} and watching.who_ended(6) == {}
