"""What a process says on a signal (``report_signal``): its Python stacks, and who waits for whom.

The stacks come at once, from inside the signal handler, wherever the process is. The rest comes
when Python handles signals next: within a millisecond in a wait, between two instructions of Python
code, and not while the process is in other compiled code that does not look at signals.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable

from smcoll.sync.observation import RankView, summary

Observed = list[tuple[str, int, list[RankView]]]
STANDARD_ERROR = 2
_arranged: set[str] = set()


def arrange(name: str, observe: Callable[[], Observed]) -> None:
    """Handle this signal from now on. Once per signal; only the main thread can."""
    if name in _arranged or threading.current_thread() is not threading.main_thread():
        return
    _arranged.add(name)
    number = signal.Signals[name]

    def handle(received, frame) -> None:
        try:
            lines = report(observe())
        except Exception as error:
            lines = [f"no report: {error!r}"]
        # Not print(): the program may be in the middle of one.
        os.write(STANDARD_ERROR, "".join(f"smcoll: {line}\n" for line in lines).encode())

    signal.signal(number, handle)
    faulthandler.register(number, file=STANDARD_ERROR, all_threads=True, chain=True)


def report(observed: Observed) -> list[str]:
    """Lines for people: each communicator, its ranks, and who is missing."""
    lines = []
    for name, own_rank, views in observed:
        lines.append(f"communicator {name + ' ' if name else ''}of {len(views)} ranks, seen by its "
                     f"rank {own_rank} (pid {os.getpid()}):")
        lines += [f"  rank {view.rank}: {view.in_words()}, call {view.call}: {view.what}"
                  for view in views]
        if text := summary(views):
            lines.append(f"  {text}")
    return lines or [f"pid {os.getpid()} has no communicator in shared memory"]
