"""The open task: whom to insert into a running batch, by shaping."""

from stage import CHOOSING, Choosing

from minifuse.batching.rebatch import Rebatch
from minifuse.core.request import Request
from minifuse.labs.engine import run, served
from minifuse.stages import register
from minifuse.techniques import mix, technique

COSTS = {"virtual seconds": "lower", "idle tokens": "lower", "mean seconds to the first token": "lower"}
SETTINGS = {"kv_tokens": 32_768, "batching__max_batch": 8}


@register
class Shortest(Rebatch):
    """The policy of `baton`, the shortest prompt first."""

    name = "lab-shortest"

    def rank(self, sequence):
        return len(sequence.request.prompt)


def workloads(work):
    """Three times forty requests, with long prompts among short ones; most are there at the beginning."""
    random, found = work.random, []
    for _ in range(3):
        arrival, requests = 0.0, []
        for i in range(40):
            prompt = random.choice([random.randint(8, 60), random.randint(60, 200), random.randint(200, 500)])
            request = Request(f"r{i}", (1,) * prompt, random.randint(10, 80), ignore_eos=True, arrival_s=arrival)
            requests.append(request)
            arrival += random.choice([0.0, 0.0, 0.02])
        found.append(requests)
    return found


def costs(runs):
    metrics = [one.metrics for one in runs]
    return {
        "virtual seconds": sum(one["duration_s"] for one in metrics),
        "idle tokens": float(sum(one["tokens"]["idle"] for one in metrics)),
        "mean seconds to the first token": sum(one["ttft_s"]["mean"] for one in metrics) / len(metrics),
    }


def score(work):
    return costs([run(work, CHOOSING, Choosing, requests, **SETTINGS) for requests in workloads(work)])


def baselines(work):
    rows = {
        "first come (given)": (technique("baton"), {}),
        "shortest prompt first": (mix(technique("baton"), batching="lab-shortest"), {}),
        "run to completion": (technique("baton"), {"batching__refill": False}),
        "orca: no rectangle": (technique("orca"), {}),
    }
    drawn = workloads(work)
    return {
        name: costs([served(row, requests, **SETTINGS, **options) for requests in drawn])
        for name, (row, options) in rows.items()
    }
