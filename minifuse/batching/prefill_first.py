"""Iterations of prompts or of single tokens, never both (vLLM; Pensieve, 3.4.2)."""

from dataclasses import dataclass, replace
from functools import partial

from minifuse.batching.growing import Rule
from minifuse.batching.iteration import BatchOptions
from minifuse.batching.policy import Fill, QueuePolicy
from minifuse.core.plan import Proposal, Reason, Span
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option
from minifuse.io.parsing import number

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

    `prompt_tokens` limits newcomers without cutting prompts, as max_num_batched_tokens does in vLLM 0.2. There a longer
    prompt is refused; here no other prompt joins beside it.

    >>> # prompts of 6, 3 and 2 tokens, prompt_tokens=6: iterations of 6, and of 3 + 2
    """

    name = "prefill_first"
    work_conserving = True
    grows = True
    admission = QueuePolicy._batch_full

    @dataclass(frozen=True)
    class Options(BatchOptions):
        prompt_tokens: int | None = option(
            None, "tokens of newcomers' prompts in one iteration, at most; a longer prompt joins alone", minimum=1
        )

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        limited = self.options.prompt_tokens is not None
        return fill_prompts_first(self, now, memory, self._prompts_full if limited else None)

    def _prompts_full(self, fill: Fill, sequence: Sequence, spans: tuple[Span, ...]) -> Reason | None:
        limit: int = self.options.prompt_tokens
        if not fill.joining or num_missing(spans) == 1:
            return None
        joining = {newcomer.id for newcomer in fill.joining}
        planned = sum([work.stop - work.start for work in fill.work if work.sequence in joining])
        if planned + num_missing(spans) <= limit:
            return None
        text = f"not admitted: newcomers have {number(planned, 'token')} of the {limit} that may be prompts"
        return Reason("iteration-full", sequence.id, text)


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
    prompts = [pair for pair in running if pair[1][-1].stop - pair[1][0].start > 1]
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
