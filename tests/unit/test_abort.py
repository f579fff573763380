"""The end of a job: what a rank has written reaches the user before it aborts."""

from __future__ import annotations

import os
import threading
import time

from smcoll.mpi.abort import wait_until_read


def pipe():
    reading, writing = os.pipe()
    return reading, os.fdopen(writing, "w")


def test_a_rank_waits_until_its_last_words_were_read():
    reading, stream = pipe()
    was_read = threading.Event()

    def read_later():
        time.sleep(0.2)
        was_read.set()
        os.read(reading, 100)

    with stream:
        stream.write("ValueError: on purpose")
        stream.flush()
        reader = threading.Thread(target=read_later)
        reader.start()
        wait_until_read(stream, 60)
        assert was_read.is_set()
        reader.join()
    os.close(reading)


def test_a_rank_does_not_wait_for_ever_for_a_reader():
    reading, stream = pipe()
    with stream:
        stream.write("nobody reads this")
        stream.flush()
        wait_until_read(stream, 0.1)
    os.close(reading)


def test_what_goes_to_a_file_or_nowhere_is_not_waited_for(tmp_path):
    with open(tmp_path / "log", "w") as file:
        file.write("text")
        file.flush()
        began = time.monotonic()
        wait_until_read(file, 60)
    wait_until_read(file, 60)          # closed
    assert time.monotonic() - began < 30
