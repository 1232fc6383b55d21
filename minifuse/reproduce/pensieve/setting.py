"""The machine of Pensieve's Figure 3.17, the shape of the heads, and how a point of it is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from minifuse.attention.stage import KERNEL_DTYPES
from minifuse.core.errors import MachineError, UsageError
from minifuse.core.parsing import one_of
from minifuse.model.device import free_bytes
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.load import resolve_text
from minifuse.reproduce.experiment import Conditions, Point, Value
from minifuse.reproduce.machine import half_precision
from minifuse.simulate.timing import time_in_turns

# The paper's: requests in the batch and query tokens of each; how it compares the bars, in times the ideal's time.
BATCH, QUERIES = 32, 8
PAPER: Mapping[str, Value] = {"ours": "<1", "copied": ">1", "rounds": ">1"}
PAPER_MODEL, PAPER_DTYPE = "random:opt-13b", "float16"

MOST_QUERIES = 256
COPIES = 5  # of the KV that there may be at once: in blocks, contiguous for two, and what padding adds to these


@dataclass(frozen=True, slots=True)
class _Scale:
    """`pasts` are the past KV-tokens of each request; `rounds` the fewest by which milliseconds can be measured."""

    model: str
    pasts: tuple[int, ...]
    uneven: tuple[int, ...]
    queries_at: int  # the past KV-tokens at which the number of query tokens is varied
    rounds: int


SCALES = {
    "quick": _Scale("random:small", (64, 256), (128,), 128, 5),
    "cpu": _Scale("random:medium", (128, 256, 512, 1024, 2048, 4096), (256, 1024), 1024, 7),
    "paper": _Scale(PAPER_MODEL, (256, 512, 1024, 2048, 4096, 8192, 16384), (1024, 4096), 4096, 20),
}


class Setting:
    """The machine, the shape of the heads, and how a point of the figure is measured.

    Raises:
        UsageError: it cannot run here.
    """

    def __init__(self, conditions: Conditions) -> None:
        import torch

        gpu = torch.cuda.is_available() and conditions.scale != "cpu"
        if conditions.scale == "paper" and not gpu:
            raise MachineError(
                "--scale is paper and there is no CUDA device, which the paper's contexts need: give --scale cpu or "
                "quick, or run this where there is a GPU."
            )
        self.conditions = conditions
        self.scale = SCALES[conditions.scale]
        self.source = resolve_text(conditions.model or self.scale.model)
        self.device = "cuda" if gpu else "cpu"
        self.dtype = conditions.dtype
        if self.dtype == "auto":
            self.dtype = PAPER_DTYPE if gpu else half_precision()
        self.tokens = conditions.tokens or QUERIES
        self.rounds = max(conditions.rounds, self.scale.rounds)
        self._check()

    def _check(self) -> None:
        if self.tokens > MOST_QUERIES:
            raise UsageError(
                f"--tokens is {self.tokens}, the query tokens of a request, each of which is a round of one of the "
                f"contenders: give at most {MOST_QUERIES}."
            )
        if self.device == "cuda" and self.dtype not in KERNEL_DTYPES:
            raise UsageError(
                f"--dtype is {self.dtype} and there is a GPU, whose kernels compute in {one_of(KERNEL_DTYPES)}: give "
                "one of these, or --scale cpu."
            )
        config = self.source.config
        longest = max(self.scale.pasts) + 2 * self.tokens
        needed = COPIES * BATCH * longest * 2 * config.kv_size * DTYPE_BYTES[self.dtype]
        free = free_bytes(self.device)
        if free is not None and needed > free:
            raise UsageError(
                f"The KV of {BATCH} contexts of {longest} tokens with {config.num_kv_heads} KV heads of "
                f"{config.head_dim} in {self.dtype} takes {needed / 1e9:.1f} GB, contiguous copies included, and "
                f"{free / 1e9:.1f} GB are free on {self.device}: give a --model with less KV, a shorter --dtype or a "
                "smaller --scale."
            )

    def point(self, at: Mapping[str, Value], tokens: int, pasts: Sequence[int], paper: bool = False) -> Point:
        """All contenders on one batch; request i has `tokens` queries after `pasts[i]` past tokens."""
        import torch

        from minifuse.reproduce.pensieve.contenders import contenders
        from minifuse.reproduce.pensieve.scene import Scene

        config, device = self.source.config, torch.device(self.device)
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        scene = Scene.drawn(tokens, pasts, heads, getattr(torch, self.dtype), device, self.conditions.seed)
        four, fused = contenders(scene)
        taken = time_in_turns({name: contender.run for name, contender in four.items()}, self.rounds, self.device)
        middle = {name: median(seconds) for name, seconds in taken.items()}
        measured: dict[str, Value] = {"fused": fused}
        for name, contender in four.items():
            measured[f"{name}_ms"] = middle[name] * 1e3
            measured[f"{name}_rounds_ms"] = tuple(seconds * 1e3 for seconds in taken[name])
            if name != "ideal":
                measured[f"{name}_index_ms"] = contender.index_s * 1e3
                measured[name] = middle[name] / middle["ideal"]
        return Point(at, measured, PAPER if paper else {})

    def facts(self) -> dict[str, Any]:
        """The conditions of all measurements, as plain values."""
        config = self.source.config
        return {
            "scale": self.conditions.scale,
            "model": self.source.name,
            "num_heads": config.num_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "num_layers": config.num_layers,
            "dtype": self.dtype,
            "device": self.device,
            "clock": "real",
            "batch": BATCH,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "seed": self.conditions.seed,
            "paper_batch": BATCH,
            "paper_tokens": QUERIES,
        }
