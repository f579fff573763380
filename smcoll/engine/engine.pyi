from typing import Any

from typing_extensions import disjoint_base

from smcoll.config import Config
from smcoll.sync.domains import Domains
from smcoll.tuning.select import Decision

@disjoint_base
class Engine:
    config: Config
    domains: Domains
    oversubscribed: bool
    plans: Any
    rank: int
    size: int
    statistics: Any
    @property
    def bytes_mapped(self) -> int: ...
    @property
    def bytes_reserved(self) -> int: ...
    @property
    def segment_name(self) -> str: ...
    @property
    def woken(self) -> int: ...
    def pages_by_node(self) -> dict[int, int] | None: ...
    @property
    def decisions(self) -> dict[str, list[Decision]]: ...
    def use(self, decisions: dict[str, list[Decision]]) -> None: ...
    def keep_lessons(self) -> None: ...
    def lines_of_lessons(self) -> list[str]: ...
