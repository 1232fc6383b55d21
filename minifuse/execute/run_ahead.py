"""Runs plans that were scheduled before their input tokens were sampled (BatchMaker, 2.4.3)."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Phase, Sequence
from minifuse.core.stages import RunPlan


class RunAhead:
    """Feeds each sequence's last token back, even if the engine does not have it yet.

    With several iterations in flight (up to MaxTasksToSubmit), an iteration is planned while the previous one still
    runs. A worker runs its plans in order, so it has already produced every token that its next plan starts from.

    >>> # plans [0, 5), [5, 6), [6, 7) of one text are in flight; running the first produces token 5, which the second
    >>> # starts from. If token 5 ends the answer, the tokens of the other two are discarded.
    """

    def __init__(self, run: RunPlan) -> None:
        self._run = run
        self._known: defaultdict[int, dict[str, _Copy]] = defaultdict(dict)  # worker -> sequence -> the worker's copy

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        known = self._known[plan.worker]
        for work in plan.work:
            sequence = sequences[work.sequence]
            copy = known.get(work.sequence)
            if copy is None or len(copy.ahead.tokens) < len(sequence.tokens):
                copy = _Copy(sequence, Sequence(sequence.request, list(sequence.tokens)))
                known[work.sequence] = copy
            tokens = copy.ahead.tokens
            tokens += tokens[-1:] * (work.stop - len(tokens))  # beyond the answer's end: any token; it is discarded
        ran = self._run(plan, {name: known[name].ahead for name in plan.sequences})
        for name, produced in ran.tokens.items():
            known[name].ahead.take(produced, 1, {})
        for name, copy in list(known.items()):
            if copy.sequence.phase is Phase.FINISHED or copy.ahead.why_finished() is not None:
                del known[name]
        return ran


class _Copy(NamedTuple):
    sequence: Sequence  # the engine's own sequence
    ahead: Sequence  # a copy with all tokens that the worker has produced
