"""The laws for models of cells (docs/architecture.md): functions of a technique and a scenario that raise `LawBroken`.

Beside those that hold for every technique: dependencies are never broken ("order"), and no subgraph is at work on two
workers at once ("pinned").
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from minifuse.errors import LawBroken
from minifuse.model.cells.config import CellConfig
from minifuse.model.cells.source import CellSource
from minifuse.plan import Plan
from minifuse.report import Ran
from minifuse.request import FinishReason, Request, Sequence
from minifuse.serve.build import build_engine
from minifuse.serve.run import Answer, Served, serve
from minifuse.serve.settings import Settings
from minifuse.stages import stage
from minifuse.techniques import Technique
from minifuse.testing.cell_models import cell_model, expected_cells
from minifuse.testing.cell_observe import CellObservation, observe_cells, said_before
from minifuse.testing.cell_scenario import CellScenario, cell_mixes, cell_scenarios, is_chain
from minifuse.testing.laws import put_through
from minifuse.trace import decisions

__all__ = ["CELL_LAWS", "check_cell_laws", "in_real_time"]

CellLaw = Callable[[Technique, CellScenario], None]
PATIENCE_S = 60.0  # for a real run of a few milliseconds: after that it is stuck


def of_one_run(row: Technique, scenario: CellScenario) -> None:
    """The laws that can be read off one run: exact, ghost, order, pinned, conservation, budget, progress, refuse early,
    pure."""
    seen = observe_cells(row, scenario)
    _refuse_early(row, scenario, seen)
    for request in scenario.requests:
        if request.id not in seen.refused:
            ended = seen.answers.get(request.id)
            if ended is None:
                raise LawBroken("progress", f"{request.id} never finished")
            _exact(request, tuple(ended.answer), ended.finish_reason, ended.results)
    _conservation(seen)
    _progress(scenario, seen)


def _exact(request: Request, answer: tuple[int, ...], reason: FinishReason | None, results: Mapping[int, Any]) -> None:
    """A request comes to what the oracle says, and its results are those of the nodes that nobody reads."""
    expected = expected_cells(request)
    if list(answer) != expected.tokens:
        raise LawBroken("exact", f"{request} got {answer}, the oracle says {expected.tokens}")
    if reason is not expected.reason:
        raise LawBroken("exact", f"{request} ended by {reason}, which should be {expected.reason}")
    graph = cell_model().unfold(request)
    says = sum(node.cell == "decoder" for node in graph.nodes)
    whole = len(answer) == says  # otherwise it was cut short, and so may be its results
    if not results.keys() <= expected.results.keys() or (whole and results.keys() != expected.results.keys()):
        raise LawBroken("exact", f"{request} has the results {sorted(results)}, of {sorted(expected.results)}")
    for number, outputs in results.items():
        wanted = expected.results[number]
        alike = len(outputs) == len(wanted) and all(
            torch.allclose(one.cpu(), two, rtol=0, atol=1e-12) for one, two in zip(outputs, wanted, strict=True)
        )
        if not alike:
            raise LawBroken("exact", f"{request} has {outputs} at node {number}, the oracle says {wanted}")


def _refuse_early(row: Technique, scenario: CellScenario, seen: CellObservation) -> None:
    """Exactly those are refused whose graphs could not be held even alone, or could never be padded."""
    capacity, offers = scenario.capacity(row), stage("memory", row.memory).offers
    for name, graph in scenario.graphs(row).items():
        fits = "states" not in offers or graph.most_held <= capacity
        if "rows" in offers or row.batching == "graph_padded":
            fits = fits and is_chain(graph)
        if fits == (name in seen.refused):
            raise LawBroken("refuse early", f"{name} can be served: {fits}, refused: {seen.refused.get(name)}")


def _conservation(seen: CellObservation) -> None:
    usage = seen.usage_at_end
    if usage is None or usage.used or usage.reserved or usage.host:
        raise LawBroken("conservation", f"after the last request {usage} is still held")


def _progress(scenario: CellScenario, seen: CellObservation) -> None:
    """Every step computes something, and as long as there is anything to do some worker is at work."""
    patience = max(request.arrival_s for request in scenario.requests)
    computing = sum(step.ended_s - step.started_s for step in seen.steps)
    if seen.steps and seen.steps[-1].ended_s > computing + patience + 1e-9:
        raise LawBroken("progress", f"{seen.steps[-1].ended_s} s went by, {computing} s of them computing")
    if empty := [step.plan.step for step in seen.steps if not step.plan.work]:
        raise LawBroken("progress", f"the steps {empty} compute nothing")


def reproducible(row: Technique, scenario: CellScenario) -> None:
    """The same seed gives a byte-identical decision trace.

    The second time the requests have other ids, in the same order: a decision that hangs on a hash shows.
    """
    first = decisions(observe_cells(row, scenario).trace.events())
    renamed = tuple(replace(request, id=request.id.replace("r", "q")) for request in scenario.requests)
    second = decisions(observe_cells(row, scenario.with_requests(renamed)).trace.events())
    if first != second.replace(b'"q', b'"r').replace(b"'q", b"'r"):
        raise LawBroken("pure", "the same run decided differently the second time")


def same_in_simulation(row: Technique, scenario: CellScenario) -> None:
    """A simulation given the real run's tokens and times decides alike, however busy the host is."""
    rng = random.Random(len(scenario.requests))
    durations: dict[int, float] = {}

    def machine(plan: Plan) -> float:
        return durations.setdefault(plan.step, rng.uniform(0.001, 0.04))

    real = observe_cells(row, scenario, cost=machine)
    say = said_before(scenario.model(row), real.said)

    def recorded(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        time.sleep(rng.choice([0.0, 0.0, 1e-4]))  # a busy host
        return say(plan, sequences)

    simulated = observe_cells(row, scenario, run=recorded, cost=machine)
    if decisions(real.trace.events()) != decisions(simulated.trace.events()):
        raise LawBroken("same in simulation", "the simulation decided otherwise than the run it simulates")
    if [s.ended_s for s in real.steps] != [s.ended_s for s in simulated.steps]:
        raise LawBroken("same in simulation", "a busy host shows in simulated times")


def blind(row: Technique, scenario: CellScenario) -> None:
    """Until they show, neither a later arrival nor where an answer will end changes any decision."""
    seen = observe_cells(row, scenario)
    late = max(request.arrival_s for request in scenario.requests)
    without = tuple(request for request in scenario.requests if request.arrival_s < late)
    if without:
        slack = scenario.capacity(row) - scenario.with_requests(without).capacity(row) + scenario.slack
        other = observe_cells(row, replace(scenario, requests=without, slack=slack))
        _same_plans("a later arrival", seen, other, late)
    stops = {step.ended_s for step in seen.steps for name in step.finished if _cut(seen.answers[name])}
    if stops:
        endless = dict(seen.said)
        for name, node in endless:
            request = seen.answers[name].request
            if not request.ignore_eos and endless[name, node] in request.stop_ids:
                endless[name, node] = -1
        other = observe_cells(row, scenario, run=said_before(scenario.model(row), endless))
        _same_plans("where an answer ends", seen, other, min(stops))


def _cut(sequence: Sequence) -> bool:
    """Whether a stop token ended it, so that nobody could have known."""
    request = sequence.request
    return sequence.num_new > 0 and not request.ignore_eos and sequence.tokens[-1] in request.stop_ids


def _same_plans(what: str, one: CellObservation, two: CellObservation, until: float) -> None:
    a, b = (
        sorted(
            (step.plan.step, seen.submitted_s[step.plan.step], step.plan)
            for step in seen.steps
            if seen.submitted_s[step.plan.step] < until
        )
        for seen in (one, two)
    )
    if a != b:
        raise LawBroken("blind", f"{what} changed a decision before it could be known: {a} became {b}")


def batch_of_one(row: Technique, scenario: CellScenario) -> None:
    """Alone, or all at once in another order, requests come to the same as in any crowd: to what the oracle says."""
    at_once = tuple(replace(request, arrival_s=0.0) for request in reversed(scenario.requests))
    of_one_run(row, scenario.with_requests(at_once))
    for request in scenario.requests:
        of_one_run(row, scenario.with_requests((request,)))


def in_real_time(row: Technique, scenario: CellScenario) -> None:
    """The real engine, its workers in threads: the same results, and nobody waits for ever."""
    model, capacity = scenario.model(row), scenario.capacity(row)
    stage_options = {**row.options, **scenario.settings(row)}
    run_settings = Settings(dtype="float64", kv_memory=capacity * model.slot_bytes, stage_options=stage_options)
    source = CellSource(model.name, CellConfig("lstm", hidden_size=3, vocab_size=11))
    served: list[Served | Exception] = []

    def run() -> None:
        try:
            # Operators are made of the cells by the engine, if that is the row's granularity.
            engine = build_engine(row, source, run_settings, cell_model())
            served.append(serve(engine, scenario.requests))
        except Exception as error:
            served.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not served:
        raise LawBroken("progress", f"nothing had come of it after {PATIENCE_S} s")
    if isinstance(served[0], Exception):
        raise served[0]
    for answer in served[0].answers:
        _check_answer(answer)


def _check_answer(answer: Answer) -> None:
    if answer.finish_reason is not FinishReason.REFUSED:
        _exact(answer.request, answer.token_ids, answer.finish_reason, answer.results)


CELL_LAWS: dict[str, CellLaw] = {
    "of_one_run": of_one_run,
    "reproducible": reproducible,
    "same_in_simulation": same_in_simulation,
    "blind": blind,
    "batch_of_one": batch_of_one,
}


def check_cell_laws(examples: int = 25, **only: str) -> str:
    """Put every technique and mix for models of cells that has the given stages through every law.

    Returns:
        A sentence that says what held.

    Raises:
        LawBroken: with the law's name, on the smallest scenario found that breaks it.
        ValueError: no valid mix has these stages.
    """
    rows = list(cell_mixes(**only))
    if not rows:
        raise ValueError(f"No valid mix for cells has {only}: is the stage registered, and does it serve them?")
    return put_through(rows, CELL_LAWS, cell_scenarios, examples)
