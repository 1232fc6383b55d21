"""What a plan produced: tokens, memory in use, the report of an iteration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minifuse.core.plan import Plan
from minifuse.core.request import FinishReason

NOT_FINITE = -2  # instead of a token, where the largest logit is NaN or infinite; -1 is virtual time's placeholder


class TokenLogprobs(NamedTuple):
    """The log-probability of a sampled token, and the likeliest tokens with theirs.

    All come from the model's own distribution, before temperature, top-k and top-p. `top` begins with the likeliest.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Ran(NamedTuple):
    """What a plan produced: the tokens of each sequence whose last token it reached."""

    tokens: Mapping[str, tuple[int, ...]]
    measured: Any = None  # what it cost apart from computation (`minifuse/core/measured.py`)
    results: Mapping[str, Mapping[int, Any]] = {}  # for cell graphs: the outputs that no other node reads, by node
    not_finite: tuple[str, ...] = ()  # sequences without a next token: their largest logit was NaN or infinite
    logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = {}  # of each new token, for requests that ask for them


class Completion(NamedTuple):
    """A plan that has run, and when it ended."""

    plan: Plan
    ran: Ran
    ended_s: float


class KVUsage(NamedTuple):
    """Counts memory in tokens or states; KV in both tiers counts as on the device."""

    used: int  # written and still needed
    reserved: int  # set aside for sequences, written or not
    capacity: int
    host: int = 0  # only on the host
    kept: int = 0  # written, and kept for later requests, on the device: it may be reclaimed at any time
    kept_on_host: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in one iteration."""

    plan: Plan
    started_s: float
    ended_s: float
    tokens: Mapping[str, tuple[int, ...]]  # each sequence's new tokens, up to the end of its answer
    finished: Mapping[str, FinishReason]
    usage: KVUsage  # while the iteration ran: sequences that finished with it are still counted
    measured: Any = None
    logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    discarded: int = 0  # tokens or nodes computed for sequences that had ended, or beyond an answer's end
