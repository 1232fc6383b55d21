"""Iterations of prompts or of single tokens, never both (vLLM; Pensieve, 3.4.2)."""

from dataclasses import replace
from functools import partial

from minifuse.batching.growing import Rule
from minifuse.batching.iteration import BatchOptions
from minifuse.batching.policy import Fill, QueuePolicy
from minifuse.core.plan import Proposal, Reason, Span
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory

OTHER_PHASE = "other-phase"


def num_missing(spans: tuple[Span, ...]) -> int:
    """Count the tokens of these spans."""
    if len(spans) == 1:  # the usual case
        return spans[0].stop - spans[0].start
    return sum([stop - start for start, stop in spans])


class PrefillFirst(QueuePolicy):
    """Computes the prompts of newcomers first, in iterations of their own.

    Running sequences wait meanwhile. A request is admitted with room for its prompt only. When memory runs out for
    running sequences, the last in rank are evicted. They return before later arrivals: with a single token if their KV
    was kept, otherwise with all their text as a prompt. A sequence that misses a single token runs with the single
    tokens, even if this token is a whole prompt, or the last token of a prompt that a token_budget has cut.
    """

    name = "prefill_first"
    Options = BatchOptions
    work_conserving = True
    grows = True
    admission = QueuePolicy._batch_full

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        return fill_prompts_first(self, now, memory)


def fill_prompts_first(policy: QueuePolicy, now: float, memory: Memory, rule: Rule | None = None) -> Proposal:
    """Fill an iteration with prompts or, if no prompt may run, with single tokens.

    Args:
        rule: returns why a newcomer can join neither kind of iteration, or None.
    """

    def joins(single: bool, fill: Fill, sequence: Sequence, spans: tuple[Span, ...]) -> Reason | None:
        if rule is not None and (reason := rule(fill, sequence, spans)):
            return reason
        if (num_missing(spans) == 1) is single:
            return None
        text = "not admitted: prompts and single tokens run in iterations of their own"
        return Reason(OTHER_PHASE, sequence.id, text)

    running = policy._missing(memory)
    prompts = [pair for pair in running if num_missing(pair[1]) > 1]
    alone = policy._fill(now, memory, prompts, partial(joins, False))
    if alone.work:
        return alone
    kept_out = {
        reason.sequence: reason
        for reason in alone.reasons
        if reason.code != OTHER_PHASE and reason.sequence not in policy.running
    }
    found = policy._fill(now, memory, running, partial(joins, True))
    if not kept_out:
        return found
    # A prompt refused in its own iteration keeps that reason: it does not wait because of the single tokens.
    return replace(found, reasons=tuple([kept_out.get(reason.sequence, reason) for reason in found.reasons]))
