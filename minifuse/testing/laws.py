"""The laws of docs/architecture.md, each a function of a technique and a scenario that raises `LawBroken`.

Laws that can be read off one run share it (`of_one_run`); the others make runs of their own to compare.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from minifuse.assembly import check_settings
from minifuse.errors import LawBroken
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.plan import Plan, sampled_work
from minifuse.report import Ran, StepReport
from minifuse.request import FinishReason, Request, Sequence
from minifuse.stages import stage
from minifuse.techniques import Technique, technique
from minifuse.testing.models import expected_answer, model_config
from minifuse.testing.observe import Observation, observe
from minifuse.testing.scenario import Scenario, mixes, scenarios
from minifuse.trace import decisions

__all__ = ["LAWS", "check_laws", "put_through"]

Law = Callable[[Technique, Scenario], None]


def of_one_run(row: Technique, scenario: Scenario) -> None:
    """Laws 1 to 7 on one observed run: exact, ghost, conservation, budget, progress, refuse early, pure."""
    seen = observe(row, scenario)
    _refuse_early(row, scenario, seen)
    _exact(scenario, seen)
    _conservation(seen)
    _budget(row, scenario, seen)
    _progress(scenario, seen)


def _exact(scenario: Scenario, seen: Observation) -> None:
    for request in scenario.requests:
        if request.id in seen.refused:
            continue
        wanted, sequence = expected_answer(scenario.model, request), seen.answers[request.id]
        if tuple(sequence.answer) != wanted:
            raise LawBroken("exact", f"{request} got {sequence.answer}, the oracle says {list(wanted)}")
        stopped = not request.ignore_eos and wanted[-1] in request.stop_ids
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        if sequence.finish_reason is not reason:
            raise LawBroken("exact", f"{request} ended by {sequence.finish_reason}, which should be {reason}")


def _conservation(seen: Observation) -> None:
    if seen.usage_at_end is None or seen.usage_at_end.used or seen.usage_at_end.reserved or seen.usage_at_end.host:
        raise LawBroken("conservation", f"after the last request {seen.usage_at_end} is still held")


def _budget(row: Technique, scenario: Scenario, seen: Observation) -> None:
    allowed = scenario.capacity * model_config(scenario.model).kv_elements_per_token * DTYPE_BYTES["float64"]
    if seen.kv_bytes is not None and seen.kv_bytes > allowed:
        raise LawBroken("budget", f"the KV tensors take {seen.kv_bytes} bytes of {allowed}")
    limit = scenario.settings(row).get("batching.token_budget")
    for step in seen.steps:
        if step.usage.reserved > scenario.capacity:
            raise LawBroken("budget", f"step {step.plan.step} has {step.usage} set aside of {scenario.capacity}")
        if limit is not None and step.plan.num_computed > limit:
            raise LawBroken("budget", f"step {step.plan.step} computes {step.plan.num_computed} tokens of {limit}")


def _progress(scenario: Scenario, seen: Observation) -> None:
    """Every step computes something, every answer leaves in the step that completed it, and all of it ends in time.

    In time: no more steps than recomputing everything would take, and no more idling than one window per request.
    """
    bound = len(scenario.requests)  # a request may be prepared in a step of its own
    limit = dict(scenario.options).get("batching.token_budget") or math.inf
    for request in scenario.requests:
        lengths = range(len(request.prompt), request.max_length)
        bound += sum(math.ceil(n / min(limit, n)) for n in lengths)  # even if every token recomputes the whole text
    taken = sum(step.discarded < step.plan.num_tokens for step in seen.steps)
    if taken > bound:
        raise LawBroken("progress", f"{taken} steps were taken for work that needs at most {bound}")
    options = dict(scenario.options)
    patience = max(request.arrival_s for request in scenario.requests)
    patience += len(scenario.requests) * options.get("batching.window", 0.0)
    computing = sum(step.ended_s - step.started_s for step in seen.steps)
    if seen.steps and seen.steps[-1].ended_s > computing + patience + 1e-9:
        raise LawBroken("progress", f"{seen.steps[-1].ended_s} s went by, {computing} s of them computing")
    last: dict[str, int] = {}
    for step in seen.steps:
        if not step.plan.work and not step.plan.moves:
            raise LawBroken("progress", f"step {step.plan.step} neither computes nor moves anything")
        last |= dict.fromkeys(step.tokens, step.plan.step)
    for step in seen.steps:
        for name in step.finished:
            if last[name] != step.plan.step:
                raise LawBroken("progress", f"{name} had its last token in step {last[name]}, left in {step.plan.step}")
    served = {request.id for request in scenario.requests} - seen.refused.keys()
    if seen.answers.keys() != served:
        raise LawBroken("progress", f"{served - seen.answers.keys()} never finished")


def _refuse_early(row: Technique, scenario: Scenario, seen: Observation) -> None:
    """Exactly those are refused whose prompts could not be held at once even alone."""
    context = model_config(scenario.model).max_context
    for prompts in scenario.asked():
        fits = _fit(row, scenario, prompts) and all(prompt.max_length <= context for prompt in prompts)
        for prompt in prompts:
            if fits == (prompt.id in seen.refused):
                raise LawBroken("refuse early", f"{prompt} fits: {fits}, refused: {prompt.id in seen.refused}")


def _fit(row: Technique, scenario: Scenario, prompts: tuple[Request, ...]) -> bool:
    """Whether a request's prompts can lie in memory together, be it in blocks, buffers, a rectangle, or runs."""
    options = check_settings(row, scenario.settings(row))["memory"]
    size: int | None = getattr(options, "block_size", None)
    if size is not None:
        return sum(-(-prompt.max_cached // size) for prompt in prompts) <= scenario.capacity // size
    slots = getattr(options, "slots", None)
    if slots is not None:
        width = scenario.capacity // slots
        return len(prompts) <= slots and all(prompt.max_cached <= width for prompt in prompts)
    if "rectangle" in stage("memory", row.memory).offers:
        width = max(len(prompt.prompt) for prompt in prompts) + max(prompt.max_new_tokens - 1 for prompt in prompts)
        return len(prompts) * width <= scenario.capacity
    return sum(prompt.max_cached for prompt in prompts) <= scenario.capacity


def reproducible(row: Technique, scenario: Scenario) -> None:
    """Law 7: the same seed gives a byte-identical decision trace.

    The second time the requests have other ids, in the same order: a decision that hangs on a hash shows.
    """
    first = decisions(observe(row, scenario).trace.events())
    renamed = tuple(replace(request, id=request.id.replace("r", "q")) for request in scenario.requests)
    second = decisions(observe(row, scenario.with_requests(renamed)).trace.events())
    if first != second.replace(b'"q', b'"r').replace(b"'q", b"'r"):
        raise LawBroken("pure", "the same run decided differently the second time")


def same_in_simulation(row: Technique, scenario: Scenario) -> None:
    """Law 8: a simulation given the real run's tokens and times decides alike, however busy the host is.

    The durations of the "real" run vary from step to step, as a machine's do.
    """
    rng = random.Random(len(scenario.requests))
    durations: dict[int, float] = {}

    def machine(plan: Plan) -> float:
        return durations.setdefault(plan.step, rng.uniform(0.001, 0.04))

    real = observe(row, scenario, cost=machine)

    def recorded(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        time.sleep(rng.choice([0.0, 0.0, 1e-4]))  # a busy host
        names = [plan.work[i].sequence for i in sampled_work(plan, sequences)]
        # Beyond the end of an answer are tokens that nobody will hear.
        said = {name: real.answers[name].answer[sequences[name].num_new :] or [-1] for name in names}
        return Ran({name: (tokens[0],) for name, tokens in said.items()})

    simulated = observe(row, scenario, run=recorded, cost=machine)
    if decisions(real.trace.events()) != decisions(simulated.trace.events()):
        raise LawBroken("same in simulation", "the simulation decided otherwise than the run it simulates")
    if [s.ended_s for s in real.steps] != [s.ended_s for s in simulated.steps]:
        raise LawBroken("same in simulation", "a busy host shows in simulated times")


def blind(row: Technique, scenario: Scenario) -> None:
    """Law 9: until they show, neither a later arrival nor where an answer will end changes any decision."""
    seen = observe(row, scenario)
    late = max(request.arrival_s for request in scenario.requests)
    without = tuple(request for request in scenario.requests if request.arrival_s < late)
    if without:
        other = observe(row, scenario.with_requests(without))
        _same_plans("a later arrival", seen, other, lambda step: step.started_s < late)
    stops = [step.plan.step for step in seen.steps for name in step.finished if _stopped(seen, name)]
    if stops:

        def endless(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
            """The same tokens as far as they go, but none that ends an answer."""
            tokens = {}
            for i in sampled_work(plan, sequences):
                sequence = sequences[plan.work[i].sequence]
                said = seen.answers[sequence.id].answer[sequence.num_new : sequence.num_new + 1]
                ends = set(said) <= set(sequence.request.stop_ids) and not sequence.request.ignore_eos
                said = said or [-1]
                tokens[sequence.id] = (-1 if ends else said[0],)
            return Ran(tokens)

        other = observe(row, scenario, run=endless)
        _same_plans("where an answer ends", seen, other, lambda step: step.plan.step <= stops[0])


def _stopped(seen: Observation, name: str) -> bool:
    """Whether the answer ended before its allowed length, so that nobody could have known."""
    sequence = seen.answers[name]
    return sequence.num_new < sequence.request.max_new_tokens


def _same_plans(what: str, one: Observation, two: Observation, comparable: Callable[[StepReport], bool]) -> None:
    a, b = (
        sorted((step.plan.step, step.started_s, step.plan) for step in seen.steps if comparable(step))
        for seen in (one, two)
    )
    if a != b:
        raise LawBroken("blind", f"{what} changed a decision before it could be known: {a} became {b}")


def batch_of_one(row: Technique, scenario: Scenario) -> None:
    """Law 10: alone or in any crowd, at any place in the batch, a request gets the same tokens."""
    crowd = observe(row, scenario)
    shuffled = observe(row, scenario.with_requests(_at_once(scenario.requests)))
    for request in scenario.requests:
        if request.id in crowd.refused:
            continue
        alone = observe(row, scenario.with_requests((replace(request, group=None),)))
        answers = {tuple(run.answers[request.id].answer) for run in (crowd, shuffled, alone)}
        if len(answers) > 1:
            raise LawBroken("batch of one", f"{request} got {sorted(answers)} alone, in a crowd, and in another order")


def same_bits(row: Technique, scenario: Scenario) -> None:
    """Law 10, to the bit: in `reference` numerics the logits are those of the request served alone by `serial`.

    An attention may do without these numerics.
    """
    if not getattr(stage("attention", row.attention), "reference", ""):
        return
    seen = observe(row, scenario, numerics="reference")
    for request in scenario.requests:
        if request.id in seen.refused:
            continue
        alone = _logits_alone(scenario.model, replace(request, group=None, arrival_s=0.0))
        for position, logits in alone.items():
            if not torch.equal(seen.logits[request.id, position], logits):
                raise LawBroken("batch of one", f"{request} has other logits at {position} than alone")


@lru_cache(maxsize=4096)
def _logits_alone(model: str, request: Request) -> dict[int, torch.Tensor]:
    scenario = Scenario(model, (request,), request.max_cached, ())
    seen = observe(technique("serial"), scenario, numerics="reference")
    return {position: logits for (_, position), logits in seen.logits.items()}


def _at_once(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    return tuple(replace(request, arrival_s=0.0) for request in reversed(requests))


LAWS: dict[str, Law] = {
    "of_one_run": of_one_run,
    "reproducible": reproducible,
    "same_in_simulation": same_in_simulation,
    "blind": blind,
    "batch_of_one": batch_of_one,
    "same_bits": same_bits,
}


def check_laws(examples: int = 25, **only: str) -> str:
    """Put every technique and mix that has the given stages through every law: `check_laws(batching="mine")`.

    Returns:
        A sentence that says what held.

    Raises:
        LawBroken: with the law's name, on the smallest scenario found that breaks it.
        ValueError: no valid mix has these stages.
    """
    rows = list(mixes(**only))
    if not rows:
        raise ValueError(
            f"No valid mix for transformers has {only}: is the stage registered? Those for models of cells are put "
            "through check_cell_laws."
        )
    return put_through(rows, LAWS, lambda row: scenarios(), examples)


def put_through(
    rows: list[Technique],
    laws: Mapping[str, Callable[[Technique, Any], None]],
    drawn: Callable[[Technique], SearchStrategy[Any]],
    examples: int,
) -> str:
    """Put every row through every law, on so many scenarios drawn for it. Returns a sentence that says what held."""
    for row in rows:
        for law in laws.values():
            _tried(law, row, drawn(row), examples)
    names = ", ".join(row.name for row in rows)
    return f"All laws held for {names}, on {examples} scenarios for each of {len(laws)} functions."


def _tried(law: Callable[[Technique, Any], None], row: Technique, drawn: SearchStrategy[Any], examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn)
    def attempt(scenario: Any) -> None:
        law(row, scenario)

    attempt()
