"""The open task: answers without long gaps, and all requests finished soon."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from stage import asked

from minifuse.labs.judge import Unmet

COSTS = {"virtual seconds": "lower", "mean seconds to the first token": "lower", "longest gap": "lower"}
COST = {
    "overhead": 5e-5,
    "weights": 8.5e-3,
    "slot": 3.4e-7,
    "token": 4.2e-5,
    "pair": 1.7e-9,
}  # of llama-2-7b on an A100
BOUND_S = 0.025
MAX_BATCH = 16
Propose = Callable[[list[dict], list[dict]], tuple[list[str], list[list]]]


def workloads(work) -> list[list[tuple[float, int, int]]]:
    """(arrival, tokens of the prompt, of the answer) of the requests of three runs: few long answers to many."""
    random, found = work.random, []
    for per_second, answer in ((30, 200), (40, 100), (60, 40)):
        arrivals = [0.0, *accumulate(random.expovariate(per_second) for _ in range(31))]
        found.append([(at, random.randint(50, 1500), random.randint(answer // 3, answer)) for at in arrivals])
    return found


def seconds(work: list[list]) -> float:
    """Of an iteration."""
    tokens = sum(stop - start for _, start, stop in work)
    keys = sum(stop for _, _, stop in work)
    pairs = sum((stop * (stop + 1) - start * (start + 1)) // 2 for _, start, stop in work)
    computing = COST["token"] * tokens + COST["pair"] * pairs
    return COST["overhead"] + max(COST["weights"] + COST["slot"] * keys, computing)


def served(requests: list[tuple[float, int, int]], propose: Propose) -> dict[str, float]:
    """The costs of a run. Raises `Unmet` where a gap is longer than the bound, or an iteration cannot be."""
    now, gap, first = 0.0, 0.0, []
    coming = [(at, f"r{i}", prompt, answer) for i, (at, prompt, answer) in enumerate(requests)]
    waiting: dict[str, dict] = {}
    running: dict[str, dict] = {}
    ends, arrived, last = {}, {}, {}
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            at, name, prompt, answer = coming.pop(0)
            waiting[name] = {"name": name, "start": 0, "stop": prompt}
            ends[name], arrived[name] = prompt + answer, at
        admit, work = propose([*running.values()], [*waiting.values()])
        if len(running) + len(admit) > MAX_BATCH:
            raise Unmet(f"{len(running) + len(admit)} requests run at once, and {MAX_BATCH} may.")
        for name in admit:
            running[name] = waiting.pop(name)
        now += seconds(work)
        for name, _, stop in work:
            one = running[name]
            one["start"] = stop
            if stop < one["stop"]:
                continue
            if name in last:
                gap = max(gap, now - last[name])
            else:
                first.append(now - arrived[name])
            last[name] = now
            one["stop"] += 1
            if one["stop"] == ends[name]:
                del running[name], last[name]
        if waits := next((name for name, since in last.items() if now - since > BOUND_S), None):
            raise Unmet(
                f"{waits} had no token for {1e3 * (now - last[waits]):.1f} ms, and {1e3 * BOUND_S:.0f} are allowed: "
                f"the last iteration has {sum(stop - start for _, start, stop in work)} tokens.",
            )
        if gap > BOUND_S:
            raise Unmet(f"two tokens of an answer are {1e3 * gap:.1f} ms apart, and {1e3 * BOUND_S:.0f} are allowed.")
    return dict(zip(COSTS, (now, sum(first) / len(first), gap), strict=True))


def summed(runs: list[dict[str, float]]) -> dict[str, float]:
    """Seconds of all runs, and the mean and the longest of what is not added up."""
    total, first, gap = zip(*(run.values() for run in runs), strict=True)
    return dict(zip(COSTS, (sum(total), sum(first) / len(first), max(gap)), strict=True))


def score(work) -> dict[str, float]:
    """The costs of the student's `Bounded` on three workloads."""
    runs = []
    for requests in workloads(work):
        policy = work.make("Bounded", MAX_BATCH, BOUND_S, COST)
        runs.append(served(requests, lambda running, waiting, policy=policy: asked(policy, running, waiting)))
    return summed(runs)


def filling(most: int) -> Propose:
    """Tokens that decode, then prompts in order, up to so many tokens."""

    def propose(running: list[dict], waiting: list[dict]) -> tuple[list[str], list[list]]:
        pieces = [[one["name"], one["start"], one["stop"]] for one in running if one["stop"] - one["start"] == 1]
        left, admit = most - len(pieces), []
        queue = [one for one in running if one["stop"] - one["start"] > 1]
        for one in queue + waiting[: MAX_BATCH - len(running)]:
            if left <= 0:
                break
            if one["start"] == 0 and one not in queue:
                admit.append(one["name"])
            pieces.append([one["name"], one["start"], min(one["stop"], one["start"] + left)])
            left -= pieces[-1][2] - pieces[-1][1]
        return admit, pieces

    return propose


def given(running: list[dict], waiting: list[dict]) -> tuple[list[str], list[list]]:
    """The form that is given: 16 tokens of one prompt."""
    prompts = [one for one in running if one["stop"] - one["start"] > 1]
    admit = waiting[:1] if not prompts and len(running) < MAX_BATCH else []
    pieces = [[one["name"], one["start"], one["stop"]] for one in running if one["stop"] - one["start"] == 1]
    pieces += [[one["name"], one["start"], min(one["stop"], one["start"] + 16)] for one in (*prompts, *admit)]
    return [one["name"] for one in admit], pieces


def up_to_the_bound(running: list[dict], waiting: list[dict]) -> tuple[list[str], list[list]]:
    """The largest of such budgets, in each iteration anew."""
    low, high = 1, 1024
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if seconds(filling(middle)(running, waiting)[1]) <= BOUND_S else (low, middle)
    return filling(low)(running, waiting)


def baselines(work) -> dict[str, dict[str, float]]:
    """The given form, two budgets that stay the same, and one that uses the bound up."""
    balance = int(COST["weights"] / COST["token"])
    policies = {
        "16 tokens of one prompt": given,
        f"{balance} tokens, whose computing takes as long as reading the weights": filling(balance),
        "400 tokens, with which the bound holds": filling(400),
        "as many tokens as the bound allows": up_to_the_bound,
    }
    return {name: summed([served(one, propose) for one in workloads(work)]) for name, propose in policies.items()}
