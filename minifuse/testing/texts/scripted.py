"""Texts without a model or torch: the next token is computed from the text."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from zlib import crc32

from minifuse.core.plan import Plan, sampled_work
from minifuse.core.report import Ran
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.stages import RunPlan
from minifuse.testing.subject import Expected
from minifuse.testing.texts import TEXTS
from minifuse.testing.texts.case import TextCase
from minifuse.testing.texts.models import model_config


def next_token(text: Seq[int], vocab_size: int) -> int:
    """Return the token that follows a text: a hash of the text, modulo `vocab_size`.

    >>> next_token([1, 2, 3], 29) == next_token((1, 2, 3), 29) != next_token([1, 2, 4], 29)
    True
    """
    return crc32(b"".join(token.to_bytes(4, "little") for token in text)) % vocab_size


class ScriptedCase(TextCase):
    """Runs a technique without a model: `next_token` makes the answers.

    No KV is computed, so only the records of slots (`TextBooks`) show what plans read.
    """

    @property
    def _vocab_size(self) -> int:
        return model_config(self.scenario.model).vocab_size

    def runner(self, numerics: str = "fast") -> RunPlan:  # type: ignore[override]  # it has no logits to compare
        def run(plan: Plan, sequences: Mapping[str, Sequence]) -> Ran:
            names = [plan.work[i].sequence for i in sampled_work(plan, sequences)]
            return Ran({name: (next_token(sequences[name].tokens, self._vocab_size),) for name in names})

        return run

    def expected(self, request: Request) -> Expected:
        text = [*request.prompt]
        while len(text) - len(request.prompt) < request.max_new_tokens:
            text.append(next_token(text, self._vocab_size))
            if text[-1] in request.stop_ids and not request.ignore_eos:
                return Expected(tuple(text[len(request.prompt) :]), FinishReason.STOP)
        return Expected(tuple(text[len(request.prompt) :]), FinishReason.LENGTH)


SCRIPTED = TEXTS._replace(noun="texts without a model", case=ScriptedCase, laws={})
