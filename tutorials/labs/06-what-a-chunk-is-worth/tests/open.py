"""The open task: fewer tokens computed again than with LRU and with the paper's value, for a crowd with habits."""

from stage import OPEN_ROW, Kept

from minifuse.core.request import Request
from minifuse.labs.engine import run, served
from minifuse.stages import register
from minifuse.techniques import mix

COSTS = {"recomputed tokens": "lower", "mean seconds to a first token": "lower"}
SIZE, DEVICE, CROWD, LONGEST = 16, 2048, 40, 1500
KINDS = [(1.0, 10), (8.0, 6), (40.0, 3)]  # the mean pause of a conversation in seconds, and its mean number of turns


def crowd(random) -> list[Request]:
    """Conversations of three kinds, equally often: quick and long, middling, slow and short. Each has a pace of its own
    around that of its kind, and keeps to it by and large."""
    requests, start_s = [], 0.0
    for number in range(CROWD):
        pause, turns = KINDS[random.randrange(len(KINDS))]
        pause *= random.lognormvariate(0, 0.3)
        start_s += random.expovariate(1.0)
        tokens = 0
        for turn in range(1 + min(15, int(random.expovariate(1 / (turns - 1))))):
            prompt, answer = 1 + int(random.expovariate(1 / 60)), 1 + int(random.expovariate(1 / 40))
            tokens += prompt + answer
            if tokens > LONGEST:
                break
            requests.append(
                Request(
                    f"c{number}.{turn}",
                    tuple(random.randrange(1, 1000) for _ in range(prompt)),
                    answer,
                    ignore_eos=True,
                    arrival_s=0.0 if turn else start_s,
                    conversation=f"c{number}",
                    after=f"c{number}.{turn - 1}" if turn else None,
                    delay_s=pause * random.lognormvariate(0, 0.4) if turn else 0.0,
                )
            )
    return requests


OPTIONS = {"memory__chunk": SIZE, "memory__host": 0, "memory__ahead": 0.0}


def counted(found) -> dict[str, float]:
    """The costs of a run."""
    return {
        "recomputed tokens": float(found.metrics["tokens"]["recomputed"]),
        "mean seconds to a first token": float(found.metrics["ttft_s"]["mean"]),
    }


def score(work) -> dict[str, float]:
    return counted(run(work, OPEN_ROW, Kept, crowd(work.random), kv_tokens=DEVICE, **OPTIONS))


@register
class Known(Kept):
    """The memory of a baseline: a formula."""

    name = "lab-known"
    formula = staticmethod(lambda chunk: 0.0)

    def value_of(self, facts):
        return [Known.formula(chunk) for chunk in facts]


def cost_over_time(chunk) -> float:
    """Cost(l) = 1 + l / 4096, an assumption, over the idle time."""
    return (1 + chunk["context"] / 4096) / chunk["idle_s"] if chunk["idle_s"] > 0 else float("inf")


def baselines(work) -> dict[str, dict[str, float]]:
    requests = crowd(work.random)
    pauses = {request.id: request.delay_s for request in requests}

    def clairvoyant(chunk) -> float:
        coming = pauses.get(f"{chunk['conversation']}.{chunk['requests']}")
        return float("-inf") if coming is None else chunk["idle_s"] - coming

    formulas = {
        "least recently used": lambda chunk: -chunk["idle_s"],
        "Cost / T of the paper": cost_over_time,
        "told every pause beforehand": clairvoyant,
    }
    row, found = mix(OPEN_ROW, memory="lab-known"), {}
    for name, formula in formulas.items():
        Known.formula = staticmethod(formula)
        found[name] = counted(served(row, requests, kv_tokens=DEVICE, **OPTIONS))
    return found
