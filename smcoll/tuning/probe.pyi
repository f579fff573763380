from typing_extensions import Buffer, Self, disjoint_base

FLAGS: int
REGION: int
REGIONS: int
COPY: int
REDUCE: int
POST: int

@disjoint_base
class Probe:
    def __new__(cls, shared: list[Buffer], rank: int) -> Self: ...
    def exchange(self, other: int, epoch: int, rounds: int, blocks: int) -> list[float]: ...
    def sections(self, epoch: int, source: int, send: Buffer, recv: Buffer, data: Buffer,
                 more: Buffer, nbytes: int, section: int, passes: int, copies: bool, reads: bool,
                 what: int, turns: bool) -> tuple[list[int], list[int], list[int]]: ...

def bounce(words: Buffer, me: int, rounds: int, blocks: int) -> list[float]: ...
def yields(count: int, blocks: int) -> list[float]: ...
