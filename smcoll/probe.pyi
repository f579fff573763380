from collections.abc import Buffer

FLAGS: int
REGION: int
REGIONS: int

class Probe:
    def __new__(cls, shared: list[Buffer], rank: int) -> Probe: ...
    def exchange(self, other: int, epoch: int, rounds: int) -> float: ...
    def sections(self, epoch: int, source: int, send: Buffer, recv: Buffer, data: Buffer,
                 nbytes: int, section: int, passes: int, copies: bool, reads: bool,
                 reduces: bool) -> tuple[float, float]: ...

def yields(count: int) -> float: ...
