"""In which order a class of calls tries its variants, and which one it keeps.

As STAR-MPI does for messages between nodes (Faraj, Yuan & Lowenthal 2006): the first calls of a
class are its measurements. Here they go in three stages: each algorithm with sections of the usual
size; the best ones' other sizes of sections; the best of all by turns with the one in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from smcoll.tuning.select import Decision
from smcoll.tuning.variants import USUAL_SECTION, family

# The row of the decision table; variants have numbers from 1 on.
ROW_IN_TABLE = 0
FINALISTS = 3
FINAL_ROUNDS = 2
# Who is slower than the best by more is not tried with other sections, and is no finalist.
NEAR_THE_BEST = 1.25
# What takes the place of the variant in use costs less than so much of it: so nothing flaps.
BETTER = 0.95
# So many trials in a row without a call of the class, and it is left for later.
EMPTY_TRIALS = 3


class Exploration:
    """What one class of calls tries: ``next`` says which variant, ``record`` takes its times."""

    def __init__(self, variants: Mapping[int, Decision], current: int = ROW_IN_TABLE,
                 known: tuple[int, ...] | None = None):
        """``current``: the number of the one in use. ``known``: only these are compared with it."""
        self.variants = dict(variants)
        self.current = current
        self.times: dict[int, list[float]] = {}
        self.trials: list[tuple[int, float, int]] = []     # variant, ns of a call, calls
        self.empty = 0
        self.given_up = False
        self._order = self._stages() if known is None else self._finals((current, *known))
        self._on_trial: int | None = None

    def next(self) -> int | None:
        """The number of the variant whose turn it is; None: nothing is left to try."""
        self._on_trial = None if self.given_up else next(self._order, None)
        return self._on_trial

    def record(self, nanoseconds: list[float]) -> None:
        """The times of a trial's calls. None where there were no such calls: it comes again."""
        assert self._on_trial is not None
        if nanoseconds:
            self.empty = 0
            time = median(nanoseconds)
            self.times.setdefault(self._on_trial, []).append(time)
            self.trials.append((self._on_trial, time, len(nanoseconds)))
            return
        self.empty += 1
        self.given_up = self.empty >= EMPTY_TRIALS

    def best(self) -> int:
        """The one to use from now on."""
        ranked = self.ranking()
        if not ranked or self.current not in self.times:
            return self.current
        is_better = self.time(ranked[0]) < BETTER * self.time(self.current)
        return ranked[0] if is_better else self.current

    def time(self, number: int) -> float:
        """ns of a call: of three trials the second fastest, so that neither one that was disturbed
        nor one that was lucky decides; of two the faster."""
        times = sorted(self.times[number])
        return times[(len(times) - 1) // 2]

    def ranking(self) -> list[int]:
        """All that were tried, the fastest first."""
        return sorted(self.times, key=self.time)

    def cost(self) -> float:
        """ns that the measured calls took longer than with the fastest variant."""
        if not self.times:
            return 0.0
        least = self.time(self.ranking()[0])
        return sum((time - least) * calls for _, time, calls in self.trials)

    def _stages(self) -> Iterator[int]:
        if not self.variants:
            return
        yield self.current
        by_family: dict[tuple, list[int]] = {}
        for number, row in self.variants.items():
            by_family.setdefault(family(row), []).append(number)
        for members in by_family.values():
            yield min(members, key=self._unlike_usual)
        # Of each algorithm with the radix that was the best.
        near: dict[str, tuple] = {}
        for row in (self.variants[one] for one in self._near_the_best() if one in self.variants):
            near.setdefault(row.algorithm, family(row))
        for number in (number for one in near.values() for number in by_family[one]):
            if number not in self.times:
                yield number
        yield from self._finals((self.current, *self._near_the_best()[:FINALISTS]))

    def _near_the_best(self) -> list[int]:
        ranked = self.ranking()
        return [number for number in ranked
                if self.time(number) <= NEAR_THE_BEST * self.time(ranked[0])]

    def _unlike_usual(self, number: int) -> int:
        return abs(self.variants[number].section_bytes - USUAL_SECTION)

    def _finals(self, numbers: tuple[int, ...]) -> Iterator[int]:
        finalists = list(dict.fromkeys(numbers))
        for _ in range(FINAL_ROUNDS if len(finalists) > 1 else 0):
            yield from finalists
