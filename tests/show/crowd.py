"""Runs that are short of memory, in which KV is shuffled, evicted, swapped, uploaded and kept; and pages of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from minifuse.core.request import Request
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.techniques import technique
from minifuse.workload.cells import cell_workload

__all__ = [
    *("BLOCKS", "FEW_SLOTS", "LAYERS", "ON_HOST", "ROOMY", "SHARE", "SHARE_SWAP", "SHORT", "SWAP", "TIERS", "WAVES"),
    *("Options", "Run", "crowd_album", "crowd_page", "crowd_trace"),
]

KV = 144 * 2**10  # bytes: 96 tokens of tiny
SHORT = 130 * 2**10  # bytes: 86 tokens of tiny
ROOMY = 64 * 2**20  # bytes: more than this crowd ever needs
Options = tuple[tuple[str, Any], ...]  # of stages; a tuple, so that a run is made once
Run = (  # arguments of `crowd_trace`
    tuple[str] | tuple[str, Options] | tuple[str, Options, str] | tuple[str, Options, str, int]
)
FEW_SLOTS: Options = (("memory.slots", 3),)
BLOCKS: Options = (("memory.block_size", 4),)
SWAP: Options = (("memory.block_size", 4), ("memory.preemption", "swap"))
SHARE: Options = (("memory.block_size", 4), ("memory.share", True))
SHARE_SWAP: Options = (*SHARE, ("memory.preemption", "swap"))
WAVES: Options = (("memory.block_size", 4), ("memory.overflow", "rotate"))
ON_HOST: Options = (("memory.block_size", 4), ("memory.turns", "host"))
LAYERS: Options = (("memory.block_size", 4), ("memory.turns", "layers"), ("memory.buffer", 0.4))
TIERS: Options = (("memory.host", 256),)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="minifuse-crowd-")


def _requests(name: str) -> list[Request]:
    encode = resolve("tiny").tokenizer().encode
    if name == "pensieve":  # three turns of six conversations, which do not all fit on the device
        turns = []
        for turn in range(3):
            for c in range(6):
                follows = {"after": f"c{c}.{turn - 1}", "delay_s": 0.05} if turn else {"arrival_s": 0.01 * c}
                text = encode(f"count from {c} to {c + 9} and add {turn} to it" * (2 if turn else 3))
                turns.append(Request(f"c{c}.{turn}", text, 12, conversation=f"c{c}", **follows))
        return turns
    alike = "sort 7 2 5 9 1 3 "  # beginnings that may be shared
    texts = [f"{alike}{i}" if i % 3 else f"count from {i} to {i + 20}" for i in range(9)]
    lengths = (14, 22, 9, 30, 12, 18, 25, 7, 16)
    return [
        Request(f"r{i}", encode(text), lengths[i], arrival_s=0.002 * i, ignore_eos=True) for i, text in enumerate(texts)
    ]


@cache
def crowd_trace(name: str, options: Options = (), model: str = "tiny", kv: int = 0, texts: bool = False) -> Path:
    """The trace of a technique that serves the crowd with these options of stages, in `kv` bytes, or few.

    Its answers have texts only if asked for: virtual time does without the weights, and how long answers are is given.
    """
    path = Path(_folder().name) / f"{name}-{model}-{kv}-{texts}-{abs(hash(options))}.jsonl"
    source = resolve(model)
    if model == "tiny":
        kv = kv or (700 * 2**10 if name == "pensieve" else KV)
        settings = Settings(clock="virtual", kv_memory=kv, why=True, stage_options=dict(options))
        requests = _requests(name)
    else:
        settings = Settings(clock="virtual", stage_options=dict(options))
        requests = cell_workload("wmt15:max=12", source.config.kind, 6, source.config.vocab_size)
    weights = source.load("float32", "cpu", 0) if texts else source.outline("float32", 0)
    serve(build_engine(resolve_run(technique(name), source, settings), weights, path), requests)
    return path


@cache
def crowd_page(name: str, options: Options = (), model: str = "tiny", kv: int = 0, texts: bool = False) -> Path:
    """The page of that trace."""
    return _page((crowd_trace(name, options, model, kv, texts),))


def crowd_album(run: Run, runs: Iterable[Run]) -> tuple[Path, int]:
    """The page of those of some runs that have one's requests, and its place among them: for `Screen.show`."""
    alike = [crowd_trace(*one) for one in runs if _workload(*one) == _workload(*run)]
    return _page(tuple(alike)), alike.index(crowd_trace(*run))


def _workload(name: str, options: Options = (), model: str = "tiny", kv: int = 0) -> tuple[str, bool]:
    return model, name == "pensieve"


@cache
def _page(traces: tuple[Path, ...]) -> Path:
    page = traces[0].with_suffix(f".{len(traces)}-{abs(hash(traces))}.html")
    page.write_text(assemble(record([*map(read_run, traces)])), encoding="utf-8")
    return page
