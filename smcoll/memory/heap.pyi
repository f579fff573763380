from collections.abc import Callable
from typing import TypedDict

from typing_extensions import Self, disjoint_base

NONCE_BYTES: int

class _Record(TypedDict):
    process: int
    descriptor: int
    size: int
    nonce: str

def create(size: int, limit: int, headroom: Callable[[], float]) -> None: ...
def set_limit(limit: int) -> None: ...
def record() -> _Record | None: ...
def usage() -> dict[str, int]: ...

@disjoint_base
class PeerHeap:
    def __new__(cls, facts: _Record) -> Self: ...
