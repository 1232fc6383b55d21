"""The contenders of Pensieve's load sweeps (3.6.1)."""

from __future__ import annotations

from minifuse.memory.tiered.profile import ASSUMED, Profile
from minifuse.papers.curve import Contender


def on_host(key: str, tokens: int, head: str = "") -> Contender:
    """Return Pensieve with room for `tokens` KV tokens on the host."""
    return Contender(key, head or key, "pensieve", {"memory.host": tokens})


PENSIEVE = Contender("pensieve", "pensieve", "pensieve")
DEVICE = on_host("device", 0, "device only")
STATELESS = Contender("stateless", "stateless", "pensieve", {"memory.keep": False})
VLLM = Contender("vllm", "vllm", "vllm")
LRU = Contender("lru", "LRU", "pensieve", {"memory.eviction": "lru"})
# Ours: attention to 4,096 tokens costs as much as everything else. The thesis gives no number for its Figure 3.4.
ASSUMING = Contender("assuming", "assumed cost", "pensieve", {"memory.profile": ASSUMED.text()})


def assuming(key: str, times: float) -> Contender:
    """Return Pensieve that assumes `times` the attention of `ASSUMING`."""
    attention = tuple(times * cost for cost in ASSUMED.attention)
    profile = Profile(ASSUMED.other, ASSUMED.contexts, attention)
    return Contender(key, key, "pensieve", {"memory.profile": profile.text()})


SEPARATE = Contender("separate", "not unified", "pensieve", {"batching.unify": False})
