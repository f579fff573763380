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
    def decisions(self) -> dict[str, list[Decision]]: ...
    def use(self, decisions: dict[str, list[Decision]]) -> None: ...
    def keep_lessons(self) -> None: ...
    def lines_of_lessons(self) -> list[str]: ...
