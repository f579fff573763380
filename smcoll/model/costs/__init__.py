"""What each algorithm of smcoll's costs, one function for each."""

from . import allreduce, blocks, rooted, shared_heap
from .work import COSTS, INLINE, SECTIONED, Plan, Work, predict, vector_bytes

__all__ = ["COSTS", "INLINE", "SECTIONED", "Plan", "Work", "allreduce", "blocks", "predict",
           "rooted", "shared_heap", "vector_bytes"]
