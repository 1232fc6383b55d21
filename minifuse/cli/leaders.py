"""What a comparison shows, in sentences: who leads on what and by how much, and the counts that tell why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from minifuse.cli.tables import in_time, is_busy, plain
from minifuse.core.errors import one_line
from minifuse.io.parsing import all_of
from minifuse.trace.metrics import Groups, Metrics

Row = tuple[str, Metrics]
ALIKE = 1.02  # figures of which one is no more than so many times the other are level
TELLING = 1.1  # a count explains a difference if it makes at least so much of it
MUCH = 2.0  # a group is told of where techniques differ so many times as much for it as for all


def leaders(
    rows: Sequence[Row], kind: str, clock: str, groups: Mapping[str, Mapping[str, Groups]] | None = None
) -> list[str]:
    """Sentences about techniques that served the same requests; one if not even two answered as many as the most.

    Args:
        kind: of the model.
        clock: real, where one run of each does not tell how much runs differ, or virtual.
        groups: of each technique, by user, priority or conversation.
    """
    ended = {name: metrics["requests"]["stop"] + metrics["requests"]["length"] for name, metrics in rows}
    most_ended = max(ended.values(), default=0)
    fewer = [name for name, number in ended.items() if number < most_ended]
    rows = [(name, metrics) for name, metrics in rows if ended[name] == most_ended]
    if len(rows) < 2 or not most_ended:
        return ["No two techniques answered as many requests, so there is nothing to compare."]
    speed = _Figure(rows, "throughput", *(("tokens_per_s", "tokens/s") if _tokens(rows) else _REQUESTS), largest=True)
    latency, called = ("e2e_s", "end-to-end time") if kind == "cells" else ("ttft_s", "TTFT")
    first = _Figure(rows, latency, "p50", f"median {called}")
    level = speed.level and first.level
    others = [
        _Figure(part, latency, "p50", f"median {called} of {whose}", whose=whose)
        for whose, part in _by_group([name for name, _ in rows], groups or {})
    ]
    if level:
        others.append(_Figure(rows, latency, "p99", f"99th percentile of {called}"))
        others.append(_Figure(rows, "itl_s", "p99", "99th percentile of inter-token latency"))
    most = max(others, key=lambda figure: figure.spread, default=first)
    also = most.spread > (TELLING if level else MUCH * first.spread)
    notes = [f"{all_of(fewer)} answered fewer requests"] if fewer else []
    notes += ["one run each, whose spread is not known"] if clock == "real" else []
    notes += ["the machine was busy"] if any(is_busy(metrics) for _, metrics in rows) else []
    aside = f" ({'; '.join(notes)})" if notes else ""
    told = [f"{_upper(speed.lead())}; {first.lead()}{aside}."]
    told += [f"{_upper(most.lead())}."] if also else []
    figure = speed if not speed.level else first if not first.level else most if also else None
    return [*told, "There is no difference to explain." if figure is None else _reason(dict(rows), figure, kind)]


def _by_group(techniques: Sequence[str], groups: Mapping[str, Mapping[str, Groups]]) -> Iterator[tuple[str, list[Row]]]:
    """Each user, priority or conversation, where there are several, with the metrics of it under each technique."""
    for by, found in groups.get(techniques[0], {}).items():
        for name in found if len(found) > 1 else ():
            part = [(technique, groups[technique][by].get(name)) for technique in techniques]
            yield (
                f"{by} {one_line(str(name))}" if name is not None else f"those without a {by}",
                [(technique, metrics) for technique, metrics in part if metrics is not None],
            )


_REQUESTS = ("requests_per_s", "requests/s")


def _upper(text: str) -> str:
    """With a capital, unless it begins with a technique's name."""
    return text.replace("all are", "All are", 1) if text.startswith("all are") else text


def _tokens(rows: Sequence[Row]) -> bool:
    return all(metrics["tokens"]["output"] for _, metrics in rows)


class _Figure:
    """One figure of each technique, and their order by it."""

    def __init__(
        self, rows: Sequence[Row], name: str, part: str, called: str, largest: bool = False, whose: str = ""
    ) -> None:
        values = {technique: metrics[name][part] if metrics[name] else None for technique, metrics in rows}
        self.values: dict[str, float] = {technique: value for technique, value in values.items() if value is not None}
        self.metrics, self.called, self.largest, self.whose = dict(rows), called, largest, whose
        self.order = sorted(self.values, key=self.values.__getitem__, reverse=largest)  # the best first

    def times(self, better: str, worse: str) -> float:
        """By what factor one is ahead of another."""
        high, low = (worse, better) if not self.largest else (better, worse)
        return self.values[high] / self.values[low] if self.values[low] else inf if self.values[high] else 1.0

    @property
    def spread(self) -> float:
        """By what factor the best is ahead of the last."""
        return self.times(self.order[0], self.order[-1]) if self.order else 1.0

    @property
    def level(self) -> bool:
        return self.spread <= ALIKE

    def lead(self) -> str:
        """Who leads, and by how much."""
        if self.level:
            return (
                f"all are level on {self.called}, within {ALIKE - 1:.0%}" if self.order else f"none has {self.called}"
            )
        best, last = self.order[0], self.order[-1]
        leaders = [name for name in self.order if self.times(best, name) <= ALIKE]
        behind = self.order[len(leaders)]
        level = "" if len(leaders) == 1 else ", level,"
        if self.largest:
            verb = "leads" if len(leaders) == 1 else "lead"
            text = f"{all_of(leaders)} {verb}{level} on {self.called}: {self._ahead(best, behind)}"
            return text if last == behind else f"{text} and {self._ahead(best, last)}, the last"
        verb = "has" if len(leaders) == 1 else "have"
        text = f"{all_of(leaders)} {verb}{level} the shortest {self.called}: {in_time(self.values[best])}"
        text += f", against {in_time(self.values[behind])} of {behind}"
        return text if last == behind else f"{text} and {in_time(self.values[last])} of {last}, the last"

    def _ahead(self, best: str, other: str) -> str:
        times = self.times(best, other)
        return f"{times:.3g} times that of {other}" if times < inf else f"{plain(self.values[best])}, {other} none"


def _reason(metrics: dict[str, Metrics], figure: _Figure, kind: str) -> str:
    best, last = figure.order[0], figure.order[-1]
    found = sorted(_counts(best, metrics[best], last, metrics[last], figure, kind), reverse=True)
    telling = [text for share, text in found if share >= TELLING][:2]
    if telling:
        return f"What tells {last} from {best}: {', and '.join(telling)}."
    rest = ": the time of an iteration differs" if figure.largest else ""
    return f"No count alone tells {last} from {best}{rest}."


def _counts(
    best: str, good: Metrics, last: str, bad: Metrics, figure: _Figure, kind: str
) -> Iterator[tuple[float, str]]:
    """Counts in which the last differs from the best: the factor that each makes up, and a clause."""
    unit = "nodes" if kind == "cells" else "tokens"

    def useless(metrics: Metrics, what: str) -> float:
        """By what factor more is computed because of it."""
        tokens = metrics["tokens"]
        useful = tokens["computed"] - tokens[what]
        return tokens["computed"] / useful if useful else inf

    if not figure.largest:  # latency: what is waited for
        waits = [figure.metrics[name]["queueing_s"]["mean"] for name in (last, best)]
        rest = figure.values[best] or inf
        which = f"requests of {figure.whose}" if figure.whose else "requests"
        yield (
            1 + max(0.0, waits[0] - waits[1]) / rest,
            f"{which} waited {in_time(waits[0])} in the mean for their first step ({best}: {in_time(waits[1])})",
        )
    yield (
        useless(bad, "idle") / useless(good, "idle"),
        f"{_share(bad, 'idle')} of the {unit} that it computed were idle ({best}: {_share(good, 'idle')})",
    )
    evictions = f" after {bad['evictions']:,} evictions" if bad["evictions"] else ""
    yield (
        useless(bad, "recomputed") / useless(good, "recomputed"),
        f"{_share(bad, 'recomputed')} of its {unit} were computed again{evictions} ({best}: "
        f"{_share(good, 'recomputed')})",
    )
    needed, fewer = (m["tokens"]["computed"] - m["tokens"]["idle"] - m["tokens"]["recomputed"] for m in (bad, good))
    if needed and fewer:  # of the same texts
        yield (
            needed / fewer,
            f"it found {bad['tokens']['reused']:,} {unit} in memory, and computed {needed:,} others ({best}: "
            f"{good['tokens']['reused']:,} and {fewer:,})",
        )
    steps = "batches" if kind == "cells" else "iterations"
    if bad["iterations"] and good["iterations"]:
        yield (
            bad["iterations"] / good["iterations"],
            f"it took {bad['iterations']:,} {steps} of {bad['mean_batch_size']:.3g} in the mean, and {best} "
            f"{good['iterations']:,} of {good['mean_batch_size']:.3g}",
        )
    for name, seconds in (("moves of KV", [m["moving_s"] for m in (bad, good)]),
                          ("gathers", [m["gathers"]["seconds"] for m in (bad, good)])):  # fmt: skip
        parts = [s / m["duration_s"] if m["duration_s"] else 0.0 for s, m in zip(seconds, (bad, good), strict=True)]
        if parts[0] < 1 and parts[1] < 1:
            yield (
                (1 - parts[1]) / (1 - parts[0]),
                f"{name} took {parts[0]:.0%} of its time ({best}: {parts[1]:.0%})",
            )


def _share(metrics: Metrics, what: str) -> str:
    tokens = metrics["tokens"]
    return f"{tokens[what] / tokens['computed']:.0%}" if tokens["computed"] and tokens[what] else "none"
