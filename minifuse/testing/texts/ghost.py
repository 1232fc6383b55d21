"""Ghost KV: a shadow cache that shows which tokens the attention under test reads.

Attention is linear in the values; with queries of zero, it is the mean of the values a token sees. Each token's
shadow value is a tag of the text up to that token, so attention must return the mean of the tags of its own prefix. An
overwritten slot, a mask one column too wide or a stale block gives another mean.

A slot without a token's KV holds NaN: a slot never written, about to be written, or behind a sequence's text. NaN
times a weight of 0 is NaN, too.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minifuse.attention.batch import AttentionBackend, Batch, joined
from minifuse.attention.storage import KVStorage
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle
from minifuse.execute.int8_storage import Int8Storage
from minifuse.execute.moving import MovingRunner
from minifuse.execute.texts import TorchRunner
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.execute.transfers import PlanTransfers
from minifuse.model.text.transformer import Transformer


@lru_cache(maxsize=65536)
def _tag(digest: bytes, size: int) -> NDArray[np.float64]:
    """Return a random-looking vector."""
    return np.random.default_rng(int.from_bytes(digest, "little")).normal(size=size)


@lru_cache(maxsize=4096)
def _tags(text: tuple[int, ...], size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a vector for each prefix of a text, and the vectors' running means.

    Returns:
        Two arrays [tokens, size].
    """
    digest, tags = b"", []
    for token in text:
        digest = hashlib.blake2b(digest + b"%d" % token, digest_size=8).digest()
        tags.append(_tag(digest, size))
    found = np.stack(tags)
    return found, found.cumsum(0) / np.arange(1, len(found) + 1)[:, None]


class _Recording(TorchRunner):
    """Records the logits of every sampled token, by sequence and position."""

    def __init__(self, model: Transformer, cache: KVStorage, attention: AttentionBackend) -> None:
        super().__init__(model, cache, attention)
        self.recorded: dict[tuple[str, int], Tensor] = {}

    def logits(
        self, plan: Plan, sequences: dict[str, Sequence], attention: AttentionBackend
    ) -> tuple[tuple[str, ...], Tensor]:
        names, logits = super().logits(plan, sequences, attention)
        self.recorded.update(((name, len(sequences[name])), row) for name, row in zip(names, logits, strict=True))
        return names, logits


class GhostRunner:
    """Checks each plan's attention on the shadow cache, then runs it as `MovingRunner` does.

    Raises `LawBroken("ghost", ...)` if a token reads anything but its own prefix; the error names the token. Raises
    `LawBroken("counting", ...)` if the plan states another number of computed tokens.

    Args:
        cache: the KV cache on which `MovingRunner` runs; like the shadow cache, it is first filled with NaN.
        cleared: whether the attention reads rows or buffers under a mask, and clears them for a newcomer.
    """

    def __init__(
        self, model: Transformer, cache: TieredStorage, attention: AttentionBackend, *, cleared: bool = False
    ) -> None:
        self.model = model
        self.cache = cache
        self.attention = attention
        self.transfers = PlanTransfers(cache, attention.operators)
        recording = _Recording(model, cache, attention)
        self.logits = recording.recorded
        self._run = MovingRunner(recording, self.transfers)
        shadow = replace(model.config, num_layers=1)
        slots, host, shared = (cache.tiers[tier].keys.shape[1] for tier in ("device", "host", "shared"))
        self.ghost = TieredStorage(shadow, slots, torch.float64, cache.device, host, shared)
        self.cleared = cleared
        for tier in (*self.ghost.tiers.values(), *cache.tiers.values()):
            for kv in tier.scales if isinstance(tier, Int8Storage) else (tier.keys, tier.values):
                for layer in kv:  # which may be views of the same slots
                    layer.fill_(math.nan)
        self.width = model.config.kv_size

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        self._move(plan, "first")
        self._move(plan, "behind")  # a plan with these moves is run when they have completed
        if plan.work:
            self._check(plan, sequences, self.attention.batch(plan, sequences, self.ghost))
        return self._run(plan, sequences)

    def _move(self, plan: Plan, moment: str, wave: int = 0) -> None:
        """Make the moves of one moment on the shadow cache, one after the other."""
        for move in plan.moves:
            if move.moment == moment and move.wave == wave:
                self.ghost.move(move)

    def _poison(self, plan: Plan, sequences: dict[str, Sequence], wave: int) -> None:
        """Put NaN into the slots that a wave writes, and into those behind its texts.

        If the attention clears buffers for newcomers, slots behind a text are poisoned only on admission. Those outside
        a rectangle's window always are: columns that enter it are cleared.
        """
        start, stop = plan.waves[wave]
        slots: list[int] = []
        for (name, first, last, _), place in zip(plan.work[start:stop], plan.places[start:stop], strict=True):
            slots += place.slots(first, last)
            behind = place.slots(max(last, len(sequences[name].tokens)), place.capacity)
            if not self.cleared or name in plan.admitted:
                slots += behind
            elif isinstance(plan.shape, Rectangle):
                slots += [slot for slot in behind if not plan.shape.reads(slot)]
        tier = self.ghost.tiers[plan.tiers[wave]]
        tier.keys[:, slots] = math.nan
        tier.values[:, slots] = math.nan

    def _check(self, plan: Plan, sequences: dict[str, Sequence], batch: Batch) -> None:
        computed = len(batch.token_ids)
        if computed != plan.num_computed:
            raise LawBroken("counting", f"step {plan.step} computes {computed} tokens and counts {plan.num_computed}")
        rows = list(range(computed)) if batch.real is None else batch.real.tolist()
        wanted = [(work.sequence, t) for work in plan.work for t in range(work.start, work.stop)]
        if len(rows) != len(wanted):
            raise LawBroken("counting", f"step {plan.step} has {len(rows)} rows for {len(wanted)} tokens of work")
        config = self.model.config
        own = np.zeros((2, computed, self.width))  # each token's tag, and the mean that it is to read
        at = 0
        for name, start, stop, _ in plan.work:
            mine = rows[at : at + stop - start]
            own[:, mine] = np.stack(_tags(tuple(sequences[name].tokens[:stop]), self.width))[:, start:]
            at += stop - start
        tags = torch.from_numpy(own[0])
        values = tags.unflatten(1, (config.num_kv_heads, config.head_dim))
        zeros = torch.zeros(computed, config.num_heads + config.num_kv_heads, config.head_dim, dtype=torch.float64)
        heads = torch.cat((zeros, values), 1)
        waves = []
        for number, wave in enumerate(batch.waves):
            self._move(plan, "before", number)
            self._poison(plan, sequences, number)
            waves.append(self.attention.attend(heads, None, self.ghost.tiers[plan.tiers[number]], 0, wave))
            self._move(plan, "after", number)
        # [tokens, num_kv_heads, group, head_dim]
        read = joined(waves).unflatten(1, (config.num_kv_heads, -1, config.head_dim))[rows]
        means = torch.from_numpy(own[1, rows]).unflatten(1, (config.num_kv_heads, 1, config.head_dim))
        off = (read - means).abs().flatten(1).amax(1)
        for (name, t), distance in zip(wanted, off.tolist(), strict=True):
            if not distance <= 1e-9:
                raise LawBroken("ghost", f"step {plan.step}: token {t} of {name} did not read its own {t + 1} tokens")
