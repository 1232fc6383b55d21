"""What each law says, who checks it, and where to look when it is broken: the table of docs/laws.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from minifuse.testing.graphs import GRAPHS
from minifuse.testing.subject import Subject
from minifuse.testing.texts import TEXTS


class Statement(NamedTuple):
    """A law in words."""

    says: str
    checked_by: str
    methods: Mapping[
        str, tuple[str, ...]
    ]  # by kind of stage: where it is kept or broken; the likeliest kinds, and methods, first
    read: str  # the page of docs/, and the paragraph, that explains what it is about


STATEMENTS: dict[str, Statement] = {  # one entry for laws that are told as one
    "exact": Statement(
        "tokens, greedy and sampled, and results of cells equal the oracle's, or the beginning of them if the "
        "request was aborted or interrupted; answers end where and why they should: also before the first token "
        "whose logits are not finite, for the reason `nan`",
        "`minifuse/naive`, recomputing everything in float64 with layers and sampling of its own",
        {
            "attention": ("attention", "reads", "batch"),
            "memory": ("place", "missing", "commit"),
            "batching": ("propose", "_fill", "commit"),
        },
        'docs/architecture.md: "One forward pass"',
    ),
    "ghost": Statement(
        "every token attends to exactly its own prefix; every slot of states is read by the nodes that it was "
        "written for",
        "a shadow cache read by the attention under test; books",
        {
            "attention": ("attention", "reads", "batch"),
            "memory": ("place", "commit", "release"),
            "batching": ("propose", "_fill"),
        },
        'docs/laws.md: "Ghost KV"',
    ),
    "counting": Statement(
        "the tokens and nodes computed are those the plan counts, idle ones included; a step carries the bytes "
        "of its moves, each in its direction, and takes no less time; trace and metrics tell all of that as it "
        "was",
        "the batch's shape; books",
        {"attention": ("layout", "batch"), "memory": ("place", "ahead"), "batching": ("propose", "_fill")},
        'docs/mechanisms.md: "Padding and idle rows"',
    ),
    "conservation": Statement(
        "free + owned = total in both tiers; no slot has two owners but for the same text; no sequence two "
        "workers; no work is in a plan twice; memory counts what is written and needed, and no more; nothing is "
        "moved from under another worker, read before it has been written or has landed, or overwritten before "
        "it has been copied; with `memory.preemption=swap` and blocks, nothing is dropped that the host has room for; "
        "what is found later was counted as kept; after the last request, or an interrupt, nothing is held and there "
        "is as much room as at first",
        "memory's books, and others kept from the plans alone",
        {
            "memory": ("place", "commit", "release", "landed"),
            "batching": ("propose", "victims", "admission", "_fill"),
            "attention": ("layout",),
        },
        'docs/mechanisms.md: "Owners that last"',
    ),
    "budget": Statement(
        "KV never exceeds the bytes given; no step exceeds its token budget; under a policy with the option "
        "`batching.max_tokens`, a newcomer joins only an iteration of fewer tokens; newcomers leave `memory.reserve` "
        "of the device to the sequences that run, and no more than `memory.threshold` of it is in use, where there are "
        "these options",
        "the tensors' size, the reports, the proposals",
        {"memory": ("room", "place"), "batching": ("propose", "token_budget", "admission"), "attention": ("layout",)},
        'docs/architecture.md: "One trial a decision"',
    ),
    "progress": Statement(
        "each step computes or moves; an answer leaves in the step that completes it; steps and idle time are "
        "bounded; a policy does not wake itself for ever",
        "the reports",
        {
            "batching": ("propose", "admission", "wake_at", "victims", "rank"),
            "memory": ("missing", "room", "place"),
            "attention": ("layout",),
        },
        'docs/architecture.md: "Waiting"',
    ),
    "refuse early": Statement(
        "a request that could never be held is refused, and no other; refusing changes nothing",
        "an independent count for each memory, registered in `testing/capacity.py`",
        {"memory": ("check", "receive"), "batching": ("receive", "check"), "attention": ("check",)},
        'docs/architecture.md: "Requests that follow"',
    ),
    "in turn": Statement(
        "a request that follows another arrives when that one has ended and its delay has passed, behind all of "
        "that one's text",
        "the observed answers and times",
        {"memory": ("missing", "release"), "batching": ("receive", "propose"), "attention": ("layout",)},
        'docs/architecture.md: "Requests that follow"',
    ),
    "order, pinned": Statement(
        "no node runs twice, or before what it reads; no subgraph is on two workers at once",
        "books",
        {"batching": ("propose", "commit", "receive"), "memory": ("place", "commit"), "attention": ("layout", "batch")},
        'docs/mechanisms.md: "Cellular batching"',
    ),
    "queue": Statement(
        "under a policy with the option `batching.order`, no request is admitted before one that precedes it in "
        "that order, however full memory is; none is evicted that precedes all that run then, nor, unless the policy "
        "has `victims` of its own, one that runs on; prompts computed `apart` are led by the first, and join in order, "
        "while others run behind all prompts of higher priority",
        "an order computed from requests and the time",
        {
            "batching": ("rank", "admission", "victims", "receive", "propose"),
            "memory": ("room", "place"),
            "attention": ("layout",),
        },
        'docs/mechanisms.md: "The queue, and priorities"',
    ),
    "value": Statement(
        "under a memory with the option `memory.eviction`, of the KV that may be reclaimed in a place, what is worth "
        "least goes first, and what has no copy only when nothing else is left; under a policy that evicts, chunks are "
        "copied ahead of time if, and only if, less than `memory.ahead` of the device is free or backed up (of runs "
        "without sharing and without aborts)",
        "times and positions, as plans and reports tell them",
        {"memory": ("place", "ahead", "release"), "batching": ("propose",), "attention": ("layout",)},
        'docs/mechanisms.md: "Owners that last"',
    ),
    "alike": Statement(
        "under a memory with the options `memory.share` and `memory.chunk`, a newcomer computes no whole chunk of its "
        "text again that a running sequence has, whose text is the same up to there; nor one that a conversation "
        "keeps, where the device has room for all texts",
        "texts and plans",
        {"memory": ("missing", "place", "receive"), "batching": ("propose",), "attention": ("layout",)},
        'docs/mechanisms.md: "Owners that last"',
    ),
    "window": Statement(
        "under a policy with the option `batching.window`, where nothing runs the oldest waiting request has not "
        "waited for longer, whatever has arrived since",
        "arrivals and the time",
        {"batching": ("wake_at", "admission", "propose"), "memory": ("room",), "attention": ("layout",)},
        'docs/architecture.md: "Waiting"',
    ),
    "together": Statement(
        "under a policy with `starts_together`, the prompts of a request are admitted together; with the option "
        "`batching.unify` off, prompts and single tokens are computed apart",
        "the proposals",
        {"batching": ("propose",), "memory": ("room", "place"), "attention": ("layout",)},
        'docs/laws.md: "Claims"',
    ),
    "work conserving": Statement(
        "under a policy with `work_conserving`, no request waits at two moments in a row at which none is admitted or "
        "evicted, while the batch has a place, the iteration tokens left, and memory room for any that waits",
        "the proposals, and trials of memory's room",
        {"batching": ("admission", "propose", "_fill", "release"), "memory": ("room",), "attention": ("layout",)},
        'docs/laws.md: "Claims"',
    ),
    "overtaking": Statement(
        "under a policy with `overtaken_at_most`, no more later arrivals are admitted while a request waits, "
        "first or after an eviction, under first come, first served; under one that claims 0, those that arrive at one "
        "moment are admitted in the order in which it received them; under one with the option `batching.starve`, none "
        "that arrives more than that after the wait began",
        "the reports, one by one",
        {"batching": ("rank", "admission", "propose", "victims"), "memory": ("room",), "attention": ("layout",)},
        'docs/laws.md: "Claims"',
    ),
    "reasons": Statement(
        "a reason has a code and a sentence, and tells of a sequence that is there and not admitted by the same "
        "proposal; where nothing runs and requests wait, there is one",
        "the proposals",
        {"batching": ("propose", "admission"), "memory": ("room",), "attention": ("layout",)},
        'docs/architecture.md: "Waiting"',
    ),
    "contract": Statement(
        "a stage's methods return what their contract allows (docs/stages.md), and raise no error but to refuse "
        "a request",
        "every run; `contracts/checks.py`, of stages that are not minifuse's own",
        {"batching": ("propose",), "memory": ("place",), "attention": ("layout",)},
        'docs/architecture.md: "The loop"',
    ),
    "time": Statement(
        "every stage is told when things happen: when a plan is made and completes, a sequence ends, copies "
        "land; a plan takes the seconds that it costs, and of a device that workers share its part; it waits for its "
        "own copies, layer by layer, and for one that goes out ahead of time at most",
        "the clock; the reports",
        {"batching": ("commit", "propose"), "memory": ("place", "commit", "release"), "attention": ("layout",)},
        'docs/architecture.md: "Time"',
    ),
    "layout": Statement(
        "waves are consecutive ranges that cover the work; lanes name each piece of work once; places are of the "
        "kind that is read",
        "the plans",
        {"attention": ("layout",), "memory": ("place",), "batching": ("propose",)},
        'docs/mechanisms.md: "Waves"',
    ),
    "pure": Statement(
        "`propose` changes nothing it does not own; the same run decides alike, byte for byte",
        "snapshots, `trace.log.decisions`",
        {
            "batching": ("propose", "admission", "rank", "victims"),
            "memory": ("room", "missing"),
            "attention": ("layout",),
        },
        'docs/architecture.md: "One trial a decision"',
    ),
    "same in simulation": Statement(
        "given the same times and tokens, the simulation makes the same plans; a busy host does not show in it",
        "replay",
        {
            "batching": ("propose", "admission", "rank", "wake_at"),
            "memory": ("place", "ahead"),
            "attention": ("layout",),
        },
        'docs/architecture.md: "Time"',
    ),
    "second life": Statement(
        "the same requests, served again by the same stages when the first have left, are decided alike, some aborted "
        "while they are suspended: no place in the batch and no memory of either tier is lost (of stages that do not "
        "say `remembers`, where nothing is kept)",
        "a run of both lives, and one of the first alone",
        {
            "batching": ("release", "propose", "admission"),
            "memory": ("release", "place", "commit"),
            "attention": ("layout",),
        },
        'docs/laws.md: "Claims"',
    ),
    "blind": Statement(
        "later arrivals and unknown answer lengths change no earlier decision",
        "runs that differ only in those",
        {
            "batching": ("propose", "admission", "rank", "wake_at"),
            "memory": ("place", "missing"),
            "attention": ("layout",),
        },
        'docs/architecture.md: "Time"',
    ),
    "batch of one": Statement(
        "alone, in a crowd, in any order: the same tokens; in the reference numerics, the same bits",
        "comparison",
        {
            "attention": ("attention", "reads", "batch"),
            "memory": ("place", "missing"),
            "batching": ("propose", "_fill", "admission"),
        },
        'docs/architecture.md: "One forward pass"',
    ),
}


class OwnLaw(NamedTuple):
    """A law in words, and the function that checks it."""

    says: str
    function: Callable[..., str | None]

    @property
    def file(self) -> str:
        return self.function.__code__.co_filename

    @property
    def line(self) -> int:
        return self.function.__code__.co_firstlineno


OWN_LAWS: dict[str, OwnLaw] = {}  # of a researcher's own, by name: `minifuse.testing.own_laws`
_OTHER = Statement("a law that a stage has of its own", "the stage", {}, "The laws")


def is_of_kit(law: str) -> bool:
    """Whether a law of the kit has this name."""
    return any(law in names.split(", ") for names in STATEMENTS)


def statement(law: str) -> Statement:
    """The words of the law with this name, as `LawBroken` carries it."""
    if law in OWN_LAWS:
        return _OTHER._replace(says=OWN_LAWS[law].says)
    return next((words for names, words in STATEMENTS.items() if law in names.split(", ")), _OTHER)


def names_of(*subjects: Subject) -> list[str]:
    """The names of the kit's laws that are checked on these subjects."""
    every = [name for names in STATEMENTS for name in names.split(", ")]
    special = {name for subject in (TEXTS, GRAPHS) for name in subject.law_names}
    own = {name for subject in subjects for name in subject.law_names}
    return [name for name in every if name not in special or name in own]
