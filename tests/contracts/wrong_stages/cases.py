"""Wrong policies, memories and attentions, as students write them: each a class with one mistake in one method.

`Wrong` has the body of the class, the method that must be named, and words of the sentence. Where the mistake is in the
class itself, the stage cannot be made.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["Wrong", "source_of"]

HEAD = """
import asyncio, math, sys
from dataclasses import replace
import numpy as np
from minifuse.attention.stage import PerSequenceStage
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.kernels.operators import TORCH
from minifuse.batching.cellular import Cellular
from minifuse.batching.graph_merged import GraphMerged
from minifuse.batching.iteration import Iteration
from minifuse.batching.policy import QueuePolicy
from minifuse.batching.prefill_first import PrefillFirst
from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.plan import Layout
from minifuse.core.shapes import Rectangle
from minifuse.kernels.operators import TORCH
from minifuse.memory.contiguous import Contiguous
from minifuse.memory.padded import Padded
from minifuse.memory.paged.paged import Paged
from minifuse.memory.states.states import States
from minifuse.core.places import Pages
from minifuse.core.plan import Extent
from minifuse.core.plan import Move, Placement, Proposal, Reason
from minifuse.core.report import KVUsage
from minifuse.core.request import Phase, Sequence
from minifuse.stages import register
from minifuse.core.plan import Span, Work
"""


class Wrong(NamedTuple):
    name: str
    body: str  # methods, without their first indentation
    method: str
    words: str
    base: str = ""
    technique: str = "orca"
    head: str = ""  # before the class
    capacity: int = 60
    settings: Mapping[str, Any] = MappingProxyType({})


def source_of(wrong: Wrong, base: str) -> str:
    """The file that registers it as "mine"."""
    body = "\n".join(f"    {line}" for line in wrong.body.strip("\n").split("\n"))
    declared = f'class Mine({wrong.base or base}):\n    """Mine."""\n\n    name = "mine"\n'
    return f"{HEAD}{wrong.head}\n\n@register\n{declared}\n{body}\n"
