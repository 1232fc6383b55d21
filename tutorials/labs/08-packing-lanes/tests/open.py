"""The open task: lanes whose longest ends early, in few steps."""

from stage import valid

from minifuse.attention.packing import pack
from minifuse.labs.judge import Unmet

COSTS = {"makespan": "lower", "over the bound, %": "lower", "steps": "lower"}
STEPS = 400  # that each piece may take, and 1,000 for the wave


def waves(work):
    """Waves of two kinds: prompts of like lengths, and prompts among single tokens. Costs, and the lanes at once."""
    random = work.random
    found = []
    for _ in range(12):
        most = random.choice([3, 4, 6])
        found.append(([random.randint(300, 1000) for _ in range(most * 3 + random.randrange(most))], most))
        prompts = [random.randint(150, 700) for _ in range(2 * most)]
        tokens = [random.randint(10, 60) for _ in range(random.randint(0, 12))]
        mixed = [*prompts, *tokens]
        random.shuffle(mixed)
        found.append((mixed, most))
    return found


def end(costs, lanes):
    return max(sum(costs[piece] for piece in lane) for lane in lanes)


def bound(costs, most):
    """No division ends earlier: neither than the longest piece, nor than if all lanes ended together."""
    return max(max(costs), -(-sum(costs) // most))


def scored(drawn, ends):
    least = sum(bound(*one) for one in drawn)
    return {"makespan": float(sum(ends)), "over the bound, %": 100 * (sum(ends) / least - 1)}


def score(work):
    drawn, ends, steps = waves(work), [], 0
    for costs, most in drawn:
        told = f"balanced({costs}, {most})"
        lanes = valid(told, work.call("balanced", costs, most, form=list[list[int]]), len(costs), most)
        allowed = STEPS * len(costs) + 1000
        if work.steps > allowed:
            raise Unmet(f"{told} took {work.steps:,} steps: {allowed:,} are allowed for {len(costs)} pieces.")
        steps += work.steps
        ends.append(end(costs, lanes))
    return {**scored(drawn, ends), "steps": float(steps)}  # which baselines have not: they are no one's file


def one_by_one(costs, most, order):
    """Each piece to the lane that ends first."""
    ends = [0] * most
    for piece in order:
        ends[ends.index(min(ends))] += costs[piece]
    return max(ends)


def baselines(work):
    drawn = waves(work)
    ends = {
        "arrival (given)": [one_by_one(costs, most, range(len(costs))) for costs, most in drawn],
        "greedy of the paper": [end(costs, pack(costs, most)) for costs, most in drawn],
        "longest first": [
            one_by_one(costs, most, sorted(range(len(costs)), key=lambda piece: -costs[piece])) for costs, most in drawn
        ],
        "lower bound": [bound(*one) for one in drawn],
    }
    return {name: scored(drawn, found) for name, found in ends.items()}
