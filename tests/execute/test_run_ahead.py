"""Iterations in flight: each starts from the last token produced, whether or not the engine has taken it in."""

from __future__ import annotations

from minifuse.core.plan import Extent, Plan, Work
from minifuse.core.report import Ran
from minifuse.core.request import Phase, Request, Sequence
from minifuse.execute import RunAhead


def _plan(step: int, *work: Work, worker: int = 0) -> Plan:
    return Plan(step, worker, work, tuple(Extent(0, 50) for _ in work))


class _Echo:
    """Produces, for every sequence due a token, the last token read plus one; notes what was read."""

    def __init__(self) -> None:
        self.read: list[list[int]] = []

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        produced = {}
        for name, start, stop, _ in plan.work:
            self.read.append(sequences[name].tokens[start:stop])
            assert len(self.read[-1]) == stop - start
            if stop == len(sequences[name].tokens):
                produced[name] = (self.read[-1][-1] + 1,)
        return Ran(produced)


def test_each_iteration_reads_the_token_of_the_one_before() -> None:
    run = _Echo()
    ahead = RunAhead(run)
    a = Sequence(Request("a", (3, 4), 9))
    spans = [(0, 2), (2, 3), (3, 4)]
    produced = [ahead(_plan(i, Work("a", *span)), {"a": a}).tokens for i, span in enumerate(spans)]
    assert produced == [{"a": (5,)}, {"a": (6,)}, {"a": (7,)}]
    assert run.read == [[3, 4], [5], [6]]
    assert a.tokens == [3, 4]  # only the engine writes to it


def test_the_engines_tokens_come_before_its_own() -> None:
    run = _Echo()
    ahead = RunAhead(run)
    a = Sequence(Request("a", (3,), 9))
    ahead(_plan(0, Work("a", 0, 1)), {"a": a})
    a.tokens += [40]  # the engine has more tokens than this worker computed
    a.tokens += [50]
    assert ahead(_plan(1, Work("a", 2, 3), worker=0), {"a": a}).tokens == {"a": (51,)}
    assert ahead(_plan(2, Work("a", 2, 3), worker=1), {"a": a}).tokens == {"a": (51,)}  # and so on another worker


def test_beyond_the_end_of_an_answer_it_computes_on_and_keeps_no_copy() -> None:
    run = _Echo()
    ahead = RunAhead(run)
    a = Sequence(Request("a", (3,), 9, stop_ids=(4,)))
    assert ahead(_plan(0, Work("a", 0, 1)), {"a": a}).tokens == {"a": (4,)}
    for step in (1, 2):  # planned before token 4 was known, which ends the answer
        ahead(_plan(step, Work("a", step, step + 1)), {"a": a})
    a.tokens += [4]
    a.phase = Phase.FINISHED
    ahead(_plan(3, Work("a", 3, 4)), {"a": a})
    b = Sequence(Request("b", (1,), 3))
    for step in range(3):
        ahead(_plan(4 + step, Work("b", step, step + 1)), {"b": b})
    assert ahead._known == {0: {}}
