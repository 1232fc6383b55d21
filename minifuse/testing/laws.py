"""The laws of docs/laws.md: functions of a case and its observed run that raise `LawBroken`.

`of_one_run` checks everything that one run shows. The other laws make more runs to compare with it.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import replace

from minifuse.contracts.proposal import num_counted
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan
from minifuse.core.report import NOT_FINITE, Ran, StepReport
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.testing.capacity import is_counted
from minifuse.testing.drawn import own_options
from minifuse.testing.graphs import GRAPHS
from minifuse.testing.load import crowd_of
from minifuse.testing.observation import Observation
from minifuse.testing.observed import observe
from minifuse.testing.overtaking import check_overtaking
from minifuse.testing.own_laws import check_own_laws
from minifuse.testing.second_life import second_life
from minifuse.testing.subject import Case, Subject, alike
from minifuse.testing.texts import TEXTS
from minifuse.testing.timing import check_time
from minifuse.testing.told import check_trace
from minifuse.trace.log import decisions

Law = Callable[[Case, Observation], None]
SUBJECTS = (TEXTS, GRAPHS)


def of_one_run(case: Case, seen: Observation) -> None:
    """Check the laws that need only one run, and a researcher's own laws.

    The laws ghost, counting, layout, pure, queue, window, together, work conserving, reasons and, for graphs, order and
    pinned are checked earlier, during the run.
    """
    _refuse_early(case, seen)
    _in_turn(case, seen)
    _exact(case, seen)
    _conservation(seen)
    _budget(case, seen)
    _progress(case, seen)
    check_time(case, seen)
    check_trace(seen)
    check_overtaking(case, seen)
    case.of_one_run(seen)
    check_own_laws(case, seen)


def _refuse_early(case: Case, seen: Observation) -> None:
    """Check that requests are refused if, and only if, they cannot be served alone.

    The text that a request continues counts as part of it. A request that follows a refused one must be refused, too.
    """
    for prompts in case.groups:
        after = prompts[0].after
        if after is not None and after not in seen.refused and prompts[0].id not in seen.answers.keys() | seen.refused:
            raise LawBroken("progress", f"{prompts[0].id} never arrived")
        if seen.never_arrived(prompts[0]):
            continue
        whole = tuple(_whole(case, prompt, seen) for prompt in prompts)
        if after not in seen.refused and not is_counted(case.row.memory):
            continue
        servable = after not in seen.refused and case.servable(whole)
        for prompt in prompts:
            if servable == (prompt.id in seen.refused):
                why = seen.refused.get(prompt.id)
                raise LawBroken("refuse early", f"{prompt} can be served: {servable}, refused: {why}")


def _whole(case: Case, request: Request, seen: Observation) -> Request:
    """Return a request whose prompt begins with the observed text that it continues."""
    return case.whole(request, None if request.after is None else seen.answers.get(request.after))


def _in_turn(case: Case, seen: Observation) -> None:
    """Check that a turn arrives when its predecessor has ended and the delay has passed."""
    for request in case.requests:
        ended = seen.answers.get(request.id)
        if request.after is None or ended is None or seen.never_arrived(request):
            continue
        arrival_s = max(request.arrival_s, seen.ended_s[request.after] + request.delay_s)
        if (ended.request.prompt, ended.request.arrival_s) != (_whole(case, request, seen).prompt, arrival_s):
            raise LawBroken("in turn", f"{request} arrived as {ended.request}, which should be at {arrival_s}")


def _exact(case: Case, seen: Observation) -> None:
    for request in case.requests:
        if request.id in seen.refused or seen.never_arrived(request):
            continue
        ended = seen.answers.get(request.id)
        if ended is None:
            raise LawBroken("progress", f"{request.id} never finished")
        whole = _whole(case, request, seen)
        expected = case.endless(whole) if case.scenario.replayed else case.expected(whole)
        expected.check(whole, tuple(ended.answer), ended.finish_reason, ended.results)


def _conservation(seen: Observation) -> None:
    usage = seen.usage_at_end
    if usage is None or usage.used or usage.reserved or usage.host:
        raise LawBroken("conservation", f"after the last request {usage} is still held")
    if seen.room_at_end != seen.room_at_start:
        found = f"memory had room for {seen.room_at_start} requests of one token, and has room for {seen.room_at_end}"
        raise LawBroken("conservation", f"{found} after the last request")


def _budget(case: Case, seen: Observation) -> None:
    policy = case.choices.policy
    limit, option = policy.token_budget, case.settings.get("batching.token_budget")
    if limit is not None and option is not None and limit > option:
        raise LawBroken("budget", f"the policy has a token_budget of {limit}, and its option is {option}")
    for step in seen.steps:
        if max(step.usage.reserved + step.usage.kept, step.usage.capacity) > case.capacity:
            raise LawBroken("budget", f"step {step.plan.step} has {step.usage} set aside of {case.capacity}")
        plan = step.plan
        counted = num_counted(policy, plan.work, step.tokens.keys() | step.finished.keys())
        if limit is not None and (computed := plan.num_computed - plan.num_tokens + counted) > limit:
            raise LawBroken("budget", f"step {step.plan.step} computes {computed} tokens of {limit}")


def _progress(case: Case, seen: Observation) -> None:
    """Check that every step computes or moves something, and that the run ends in time.

    The run may take at most `case.most_steps` steps. It may idle until the last arrival, and in addition for the delay
    and the longest allowed wait of each request.
    """
    taken = sum(step.discarded < step.plan.num_tokens for step in seen.steps)
    if taken > case.most_steps:
        raise LawBroken("progress", f"{taken} steps were taken for work that needs at most {case.most_steps}")
    patience = max(request.arrival_s for request in case.requests)
    patience += len(case.requests) * _longest_wait(case)
    patience += sum(request.delay_s for request in case.requests)
    computing = sum(step.ended_s - step.started_s for step in seen.steps)
    if seen.steps and seen.steps[-1].ended_s > computing + patience + 1e-9:
        raise LawBroken("progress", f"{seen.steps[-1].ended_s} s went by, {computing} s of them computing")
    if empty := [step.plan.step for step in seen.steps if not step.plan.work and not step.plan.moves]:
        raise LawBroken("progress", f"the steps {empty} neither compute nor move anything")


def _longest_wait(case: Case) -> float:
    """Return how long the policy's options allow a request to wait."""
    options = vars(case.options["batching"])
    own = [name for name, declared in own_options(case.row).items() if declared.how["unit"] == "s"]
    names = {"window", *(name.removeprefix("batching.") for name in own)}
    return sum(options.get(name) or 0.0 for name in names)


def reproducible(case: Case, seen: Observation) -> None:
    """Law "pure": run again, and compare the decisions byte for byte.

    In the second run, the requests have other ids, which sort in the same order. So a decision that depends on the hash
    of an id shows.
    """
    renamed = tuple(
        replace(request, id=request.id.replace("r", "q"), after=request.after and request.after.replace("r", "q"))
        for request in case.requests
    )
    aborts = tuple((step, name.replace("r", "q")) for step, name in case.scenario.aborts)
    second = decisions(observe(case.with_requests(renamed, aborts)).trace.kept())
    renamed_id = re.compile(rb"\b(%s)\b" % b"|".join(re.escape(one.id).encode() for one in renamed))  # in texts, too
    if decisions(seen.trace.kept()) != renamed_id.sub(lambda found: found[0].replace(b"q", b"r"), second):
        raise LawBroken("pure", "the same run decided differently the second time")


def same_in_simulation(case: Case, seen: Observation) -> None:
    """Simulate a run from its tokens and times, on a busy host; compare decisions.

    The durations of the "real" run vary from step to step, as a machine's do.
    """
    rng = random.Random(len(case.requests))
    durations: dict[int, float] = {}

    def machine(plan: Plan) -> float:
        return durations.setdefault(plan.step, rng.uniform(0.001, 0.04))

    real = observe(case, cost=machine)
    replayed = case.replay(real.tokens)

    def busy(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        time.sleep(rng.choice([0.0, 0.0, 1e-4]))
        return replayed(plan, sequences)

    simulated = observe(case, run=busy, cost=machine)
    if decisions(real.trace.kept()) != decisions(simulated.trace.kept()):
        raise LawBroken("same in simulation", "the simulation decided otherwise than the run it simulates")
    if [step.ended_s for step in real.steps] != [step.ended_s for step in simulated.steps]:
        raise LawBroken("same in simulation", "a busy host shows in simulated times")


def blind(case: Case, seen: Observation) -> None:
    """Check that decisions depend neither on later arrivals nor on where answers end.

    A run without the last arrivals must decide the same until they arrive. A run in which no token ends an answer must
    decide the same until the first answer ended.
    """
    late = max(request.arrival_s for request in case.requests)
    without: dict[str | None, Request] = {}
    for request in case.requests:
        if request.arrival_s < late and (request.after is None or request.after in without):
            without[request.id] = request
    if without:
        earlier = case.with_requests(tuple(without.values()), case.scenario.aborts)
        other = observe(earlier, run=case.replay(seen.tokens))
        _same_plans("a later arrival", seen, other, late)
    stops = [step.ended_s for step in seen.steps for name in step.finished if _was_cut(seen.answers[name])]
    if stops:
        by_name = {request.id: request for request in case.requests}
        endless = {
            key: -1 if token == NOT_FINITE or _stops(by_name[key[0]], token) else token
            for key, token in seen.tokens.items()
        }  # the same tokens, but none that ends an answer
        _same_plans("where an answer ends", seen, observe(case, run=case.replay(endless)), min(stops))


def _was_cut(sequence: Sequence) -> bool:
    """Return whether an answer ended before its allowed length, which no policy could foresee."""
    request = sequence.request
    if sequence.finish_reason is FinishReason.NAN:
        return True
    return 0 < sequence.num_new < request.max_new_tokens and _stops(request, sequence.tokens[-1])


def _stops(request: Request, token: int) -> bool:
    return not request.ignore_eos and token in request.stop_ids


def _same_plans(what: str, one: Observation, two: Observation, until: float) -> None:
    def decided(seen: Observation) -> list[tuple[int, float, Plan]]:
        when = seen.submitted_s
        steps: list[StepReport] = [step for step in seen.steps if when[step.plan.step] < until]
        return sorted(((step.plan.step, when[step.plan.step], step.plan) for step in steps), key=lambda found: found[0])

    a, b = decided(one), decided(two)
    if a != b:
        raise LawBroken("blind", f"{what} changed a decision before it could be known: {a} became {b}")


def batch_of_one(case: Case, seen: Observation) -> None:
    """Serve each request alone, and all at once in another order; compare answers."""
    whole = [
        _whole(case, request, seen)
        for request in case.requests
        if (request.after is None or request.after in seen.answers) and not seen.never_arrived(request)
    ]
    at_once = tuple(replace(request, arrival_s=0.0) for request in reversed(whole))
    others = [(crowd := case.with_requests(at_once), observe(crowd))]
    for request in whole:
        alone = case.alone(request)
        others.append((alone, observe(alone)))
    for _, other in others:
        for name in seen.answers.keys() & other.answers.keys():
            if not _same_outcome(seen.answers[name], other.answers[name]):
                both = f"{seen.answers[name].answer} and {other.answers[name].answer}"
                raise LawBroken("batch of one", f"{name} got {both} alone, in a crowd, or in another order")
    for setting, other in others:
        of_one_run(setting, other)


def _same_outcome(one: Sequence, two: Sequence) -> bool:
    shared = one.results.keys() & two.results.keys()
    aborted = one.finish_reason is FinishReason.ABORTED
    return one.answer == (two.answer[: len(one.answer)] if aborted else two.answer) and all(
        alike(one.results[node], two.results[node]) for node in shared
    )


def under_load(case: Case, seen: Observation) -> None:
    """Make a run in which many requests wait, and check the laws of one run."""
    crowd = crowd_of(case)
    run = observe(crowd)
    try:
        of_one_run(crowd, run)
    except LawBroken as broken:
        broken.seen = broken.seen or run
        raise


def interrupted(case: Case, seen: Observation) -> None:
    """Interrupt a run half-way: answers must be prefixes, and memory must be empty."""
    if not seen.steps:
        return
    half = observe(case, run=case.replay(seen.tokens), interrupt_after=(len(seen.steps) + 1) // 2)
    _conservation(half)
    for name in [request.id for request in case.requests if request.id not in half.refused]:
        ended = half.answers.get(name)
        if ended is None or ended.finish_reason is None:
            raise LawBroken("progress", f"{name} has no end after an interrupt")
        if name in seen.answers and ended.answer != seen.answers[name].answer[: ended.num_new]:
            raise LawBroken("exact", f"interrupted, {name} has {ended.answer}, of {seen.answers[name].answer}")


LAWS: dict[str, Law] = {  # of every subject; a subject may have more in `Subject.laws`
    "of_one_run": of_one_run,
    "reproducible": reproducible,
    "same_in_simulation": same_in_simulation,
    "blind": blind,
    "batch_of_one": batch_of_one,
    "interrupted": interrupted,
    "under_load": under_load,
    "second_life": second_life,
}


def laws_of(subject: Subject) -> dict[str, Law]:
    """Return the laws of one subject, by the names of their functions."""
    return {**LAWS, **subject.laws}
