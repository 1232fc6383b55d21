"""`minifuse run --why`: shows whom each iteration admits, and why others wait."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from minifuse.cli.text import console
from minifuse.core.errors import one_line
from minifuse.show.figures import first_few
from minifuse.trace.log import Event

SHOWN = 8  # the maximum number of ids on a line


class WhyLines:
    """Writes on stderr what each iteration decided.

        0.000 s step 0 of worker 0 admits r0 r1
                r2 not admitted: the batch has 2 requests
                r3 r4 not considered: worker 0 admits none behind r2
                admits none in the next 18 iterations for the same reasons

    Repeated decisions are not written again, only counted.
    """

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._said: list[str] = []  # the last iteration's text, without its time and number
        self._repeated = 0

    def read(self, event: Event) -> None:
        """Write what the next event of the trace decided."""
        if event["event"] == "step":
            who = f"step {event['step']} of worker {event['worker']}"
            decided = [*_decided("admits", event["admitted"]), *_decided("evicts", event["evicted"])]
            self._say(event["wall"]["start_s"], who, " and ".join(decided) or "admits none", event["reasons"])
        elif event["event"] == "wait":
            until = event["wall"]["end_s"]
            self._say(event["wall"]["start_s"], "nothing runs", f"until {until:.3f} s", event["reasons"])
        elif event["event"] == "end":
            self._say_repeated()

    def _say(self, at_s: float, who: str, what: str, reasons: Iterable[tuple[str, str, str]]) -> None:
        by_text: dict[str, list[str]] = {}
        for _, name, text in reasons:
            by_text.setdefault(text, []).append(name)
        said = [what, *(f"{first_few(names, SHOWN, ' ')} {text}" for text, names in by_text.items())]
        if what == "admits none" and said[1:] == self._said[1:]:
            self._repeated += 1
            return
        self._say_repeated()
        self._said = said
        self._print(f"{at_s:9.3f} s {who} {what}")
        for line in said[1:]:
            self._print(f"{'':12}{line}")

    def _say_repeated(self) -> None:
        if self._repeated:
            more = f"{self._repeated} iterations" if self._repeated > 1 else "iteration"
            same = " for the same reasons" if self._said[1:] else ""
            self._print(f"{'':12}admits none in the next {more}{same}")
        self._repeated = 0

    def _print(self, line: str) -> None:
        self._console.print(Text(one_line(line)), soft_wrap=True)


def _decided(verb: str, names: Iterable[str]) -> list[str]:
    return [f"{verb} {first_few(list(names), SHOWN, ' ')}"] if names else []
