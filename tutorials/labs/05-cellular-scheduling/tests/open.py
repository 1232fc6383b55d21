"""The open task: no ready node waits for long, and yet the machine's time is well used."""

from collections import Counter

from stage import Fair, chain, serve_graphs, tree

from minifuse.batching.cellular import Cellular
from minifuse.stages import register

COSTS = {
    "longest wait and overtime, in virtual seconds": "lower",
    "longest wait of a ready node": "lower",
    "overtime: from the last arrival to the end": "lower",
}
REQUESTS = 150
MIX = [0, 0, 0, 1, 1, 2]  # of six requests: three trees, two translations, one that is ranked


def takes(fixed: float, each: float):
    """The seconds of a batch: as long as it is small, one node takes as long as many."""
    return lambda size: fixed + each * size


TYPES = {
    "leaf": {"min": 1, "max": 16, "priority": 0, "seconds": takes(0.010, 0.0005)},
    "inner": {"min": 1, "max": 16, "priority": 3, "seconds": takes(0.012, 0.0005)},
    "encoder": {"min": 1, "max": 16, "priority": 1, "seconds": takes(0.010, 0.0005)},
    "decoder": {"min": 1, "max": 8, "priority": 4, "seconds": takes(0.020, 0.003)},
    "rank": {"min": 1, "max": 16, "priority": 2, "seconds": takes(0.150, 0.001)},
}


def load(random) -> list:
    """Trees, translations, and texts that are ranked: more at times than the machine can do without batching."""
    requests, at = [], 0.0
    for number in range(REQUESTS):
        at += random.expovariate(100.0 if number // 30 % 2 else 40.0)
        kind = random.choice(MIX)
        if kind == 0:
            graph = tree(random.randint(2, 10))
        elif kind == 1:
            graph = chain(*["encoder"] * random.randint(2, 12), *["decoder"] * random.randint(2, 12))
        else:
            graph = chain(*["encoder"] * random.randint(1, 4), "rank")
        requests.append((f"r{number}", at, graph))
    return requests


def counted(policy, requests) -> dict[str, float]:
    """The costs of a run."""
    policy.begin(TYPES)
    engine, _ = serve_graphs(policy, TYPES, requests)
    overtime = engine.now - max(at for _, at, _ in requests)
    return dict(zip(COSTS, (policy.longest_s + overtime, policy.longest_s, overtime), strict=True))


OPTIONS = Cellular.Options(max_tasks=1)


def bound(requests) -> dict[str, float]:
    """No wait, and every batch full."""
    nodes = Counter(cell for _, _, graph in requests for cell in graph.topology.cells)
    seconds = sum(
        count / TYPES[name]["max"] * TYPES[name]["seconds"](TYPES[name]["max"]) for name, count in nodes.items()
    )
    overtime = max(0.0, seconds - max(at for _, at, _ in requests))
    return dict(zip(COSTS, (overtime, 0.0, overtime), strict=True))


def score(work) -> dict[str, float]:
    Fair.work = work
    return counted(Fair(OPTIONS), load(work.random))


@register
class Known(Fair):
    """The policy of a baseline: a formula, of which the type with the most is next."""

    name = "lab-known-type"
    formula = staticmethod(lambda one: 0.0)

    def choose(self, told):
        return max(told, key=self.formula)["name"]


def baselines(work) -> dict[str, dict[str, float]]:
    requests, found = load(work.random), {}
    formulas = {
        "highest priority": lambda one: one["priority"],
        "Algorithm 1": lambda one: (one["ready"] >= one["max"], one["priority"]),
        "most ready nodes": lambda one: one["ready"],
    }
    for name, formula in formulas.items():
        policy = Known(OPTIONS)
        policy.formula = formula
        found[name] = counted(policy, requests)
    return {**found, "no wait, and all batches full": bound(requests)}
