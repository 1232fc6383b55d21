"""Serves more sequences than the device holds: they pause, or their KV moves (FluidInfer, 4.1)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.plan import Placement, Plan, Proposal, Room, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import option
from minifuse.memory.blocks import check_host, check_size
from minifuse.memory.waves.books import WaveBooks
from minifuse.memory.waves.pausing import Beyond, Pausing
from minifuse.memory.waves.rotation import Rotation
from minifuse.stages import Memory

BUFFER = 0.125  # part of the device for each of two waves, or for the slots that layers share, by default
HOST_TIMES = 8  # the host's room by default, as a multiple of the device's
PAUSE, ROTATE = "pause", "rotate"
ROTATING, PAUSING = ("rest", "sequences"), ("host", "layers")  # what may take turns, by what overflow does


class Waves(Memory):
    """Gives each admitted sequence room on the host; the device holds what fits.

    If running sequences need more than the device holds, the newest pause, with their KV on the host, until there is
    room again. With `turns=host`, the host attends the KV of sequences that the device has no room for, in its own
    memory, beside the device. With `turns=layers`, their KV passes through slots that the layers share: each such slot
    holds one layer's KV at a time. Both are limited to what takes no time (`beyond`); further sequences pause.

    With `overflow=rotate`, no sequence pauses: KV that exceeds the device is uploaded in waves, as in the paper's
    Figure 8.
    """

    name = "waves"
    evicts = True
    offers: ClassVar[frozenset[str]] = frozenset({"pages"})
    one_plan: ClassVar[bool] = True

    @dataclass(frozen=True)
    class Options:
        block_size: int = option(16, "tokens in a block of the device", minimum=1)
        host: int | None = option(
            None,
            f"KV tokens that the host has room for; none: {HOST_TIMES} times the device's",
            minimum=1,
            maximum=10**8,
        )
        overflow: str = option(
            PAUSE,
            "what happens to sequences for which the device has no room: the newest pause, or all rotate through the "
            "device in every iteration",
            choices=(PAUSE, ROTATE),
        )
        turns: str | None = option(
            None,
            "how KV beyond the device is attended. With overflow=pause: none: not at all; host: by the host, where it "
            "lies; layers: layer by layer, in slots that the layers share. With overflow=rotate: rest: the first "
            "sequences stay on the device and the rest take turns, as for none; sequences: all take turns, as in the "
            "paper",
            choices=(*PAUSING, *ROTATING),
        )
        beyond: int | None = option(
            None,
            "KV tokens beyond the device that an iteration attends, at most; none: with turns=host as many as give the "
            "most tokens/s beside a full device, with turns=layers as many as the link uploads meanwhile, if that is "
            "known, or as the host holds",
            minimum=1,
            offered=True,
        )
        passes: int | None = option(
            None,
            "2: the device computes one half of the batch while the host attends the other; none: by memory.split",
            minimum=1,
            maximum=2,
        )
        split: int | None = option(
            None,
            "minimum KV tokens attended by the host for two passes; none: where two are faster, if that is known, or "
            "never",
            minimum=1,
            offered=True,
        )
        buffer: float | None = option(
            None,
            f"part of the device for each of two waves, at most 0.5, or for the slots that layers share; none: "
            f"{BUFFER:g}, or room for two waves of memory.beyond",
            minimum=0,
            maximum=1,
            offered=True,
        )
        host_dtype: str = option(
            "auto",
            "int8: KV on the host is rounded to 8 bits, with a scale for each token and head, so that answers may "
            "differ; auto: it is as on the device",
            choices=("auto", "int8"),
        )
        layers: int | None = option(
            None, "the model's number of layers, for turns=layers; none: as the model has", minimum=1, offered=True
        )

        def __post_init__(self) -> None:
            allowed = (None, *(PAUSING if self.overflow == PAUSE else ROTATING))
            if self.turns not in allowed:
                other = ROTATE if self.overflow == PAUSE else PAUSE
                raise UsageError(
                    f"memory.turns is {self.turns} and memory.overflow is {self.overflow}: give "
                    f"memory.overflow={other}, or another memory.turns."
                )
            needs = {"beyond": PAUSING, "passes": ("host",), "split": ("host",), "layers": ("layers",)}
            for name, turns in {**needs, "buffer": ("layers",)}.items():
                rotates = self.overflow == ROTATE
                if getattr(self, name) is not None and self.turns not in turns and not (rotates and name == "buffer"):
                    wanted = "" if rotates else ", or give " + " or ".join(f"memory.turns={one}" for one in turns)
                    wanted += f" or memory.overflow={ROTATE}" if name == "buffer" else ""
                    chosen = f"overflow is {ROTATE}" if rotates else f"turns is {self.turns or 'none'}"
                    raise UsageError(
                        f"memory.{name} is {getattr(self, name):g} and memory.{chosen}, for which it means nothing: "
                        f"leave it out{wanted}."
                    )
            if self.passes is not None and self.split is not None:
                raise UsageError(
                    f"memory.passes is {self.passes}, whatever the host attends, and memory.split is {self.split}: "
                    "leave one of them out."
                )
            if self.host_dtype != "auto" and self.turns == "host":
                raise UsageError(
                    f"memory.host_dtype is {self.host_dtype} and memory.turns is host, with which the host attends KV "
                    "as it was written: leave memory.host_dtype out, or give another memory.turns."
                )
            if self.overflow == ROTATE and self.buffer is not None and self.buffer > 0.5:
                raise UsageError(
                    f"memory.buffer is {self.buffer:g} of the device, for each of two waves (memory.overflow is "
                    f"{ROTATE}): give at most 0.5."
                )

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        own = self.options
        self.size: int = own.block_size
        self.host_dtype = own.host_dtype
        buffer: float = BUFFER if own.buffer is None else own.buffer
        layers = own.layers or 1
        if own.turns == "layers":
            if own.layers is None:
                raise UsageError("memory.turns is layers, and how many there are is not known: give memory.layers.")
            shared = min(-int(-buffer * capacity // 1), capacity - 1)
            num_shared = shared * layers // self.size
            if not num_shared:
                raise UsageError(
                    f"memory.turns is layers, and the part of the device that they share has {shared * layers} slots "
                    f"of one layer, less than a block of {self.size}: raise memory.buffer or --kv-memory, or lower "
                    "memory.block_size."
                )
            self.shared_capacity = num_shared * self.size
            capacity -= shared
        else:
            num_shared = 0
            check_size(capacity // self.size, capacity, self.size)
        self.capacity = capacity
        device = capacity + self.shared_capacity // layers
        num_host = (own.host or max(self.size, HOST_TIMES * device)) // self.size
        check_host(num_host, own.host, self.size)
        self.host_capacity = num_host * self.size
        self.books = WaveBooks(capacity // self.size, num_host, self.size)
        self.way: Pausing | Rotation
        if own.overflow == ROTATE:
            self.evicts = False
            self.way = Rotation(self.books, capacity, own.turns != "sequences", buffer)
        else:
            limit = 0 if own.turns is None else own.beyond or self.host_capacity
            tier = "shared" if own.turns == "layers" else "host"
            split = own.split if own.passes is None else None if own.passes == 1 else 1
            self.way = Pausing(self.books, capacity, Beyond(tier, limit, num_shared, split))

    def check(self, *prompts: Request) -> None:
        most = max(prompts, key=lambda prompt: prompt.max_cached)
        blocks_of, num_blocks = self.books.blocks.blocks_of, self.books.num_blocks
        blocks, shared = blocks_of(most.max_cached), self.shared_capacity // self.size
        limit = self.options.beyond or self.host_capacity
        if blocks > num_blocks and not (blocks <= shared and most.max_cached <= limit):
            have = f"has {num_blocks}"
            instead = (
                f", or give memory.turns=layers, memory.buffer=1 and memory.beyond={most.max_cached}, to hold one "
                "layer at a time"
            )
            if shared and blocks > shared:
                have += f", and {shared} of one layer"
                instead = (
                    ", or raise memory.buffer" if blocks <= shared + num_blocks * (self.options.layers or 1) else ""
                )
            elif shared:
                have += f", and {shared} of one layer for {limit} tokens at most"
                instead = f", or give memory.beyond={most.max_cached}"
            raise RequestRefused(
                f"Request {most.id!r} may need {blocks} blocks of {self.size} KV tokens on the device, where attention "
                f"reads them, and it {have}: shorten the prompt, lower max_new_tokens, raise --kv-memory to hold "
                f"{blocks * self.size} tokens{instead}."
            )
        needed = sum(blocks_of(prompt.max_cached) for prompt in prompts) * self.size
        if needed > self.host_capacity:
            raise RequestRefused(
                f"Request {prompts[0].group or prompts[0].id!r} may need KV for {needed} tokens on the host, which "
                f"holds {self.host_capacity}: shorten the prompt, lower max_new_tokens, or raise memory.host."
            )

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return self.books.homes.missing(sequence)

    def room(self) -> Room:
        return self.way.room()

    def place(self, proposal: Proposal, now: float) -> Placement:
        return self.way.place(proposal)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.way.wrote(plan, sampled)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        self.way.release(sequence.id)

    def usage(self) -> KVUsage:
        return self.way.usage()

    def check_integrity(self) -> None:
        self.books.check()
