"""Wrong stages for models of cells: a policy over `graph_merged`, a memory over `states`."""

from __future__ import annotations

from contracts.wrong_stages.cases import Wrong

__all__ = ["CELLS"]


def _nodes(name: str, work: str, words: str, base: str = "GraphMerged") -> Wrong:
    body = (
        "def propose(self, worker, now, memory):\n"
        "    p = super().propose(worker, now, memory)\n"
        f"    return replace(p, work={work}) if p.work else p"
    )
    return Wrong(name, body, "propose", words, base)


def _states(name: str, places: str, words: str) -> Wrong:
    body = (
        f"def place(self, proposal, now):\n    p = super().place(proposal, now)\n    return replace(p, places={places})"
    )
    return Wrong(name, body, "place", words, "States")


CELLS = [
    _nodes("a node twice", "(p.work[0], *p.work[:-1])", "planned before: compute each node once"),
    _nodes("the last node first", "p.work[::-1]", "which reads node"),
    _nodes("a node of no graph", "(p.work[0]._replace(start=99, stop=100), *p.work[1:])", "nodes of its graph"),
    _nodes("two nodes at once", "(p.work[0]._replace(stop=p.work[0].start + 2), *p.work[1:])", "nodes of its graph"),
    _nodes("a node of another cell", "(p.work[0]._replace(cell='gru'), *p.work[1:])", "nodes of its graph"),
    _nodes(
        "a node of an earlier plan",
        "(p.work if self.__dict__.setdefault('first', p.work) == p.work else (self.first[0], *p.work[1:]))",
        "planned before: compute each node once",
        "Cellular",
    ),
    _states("one slot for all", "tuple(s._replace(slot=0) for s in p.places)", "slot"),
    _states("a slot out of memory", "tuple(s._replace(slot=s.slot + 9999) for s in p.places)", "the slots 0 to"),
    _states("reads too much", "tuple(s._replace(reads=(*s.reads, 0)) for s in p.places)", "were written to the slots"),
    _states("an extent", "tuple(Extent(s.slot, 1) for s in p.places)", "give State"),
]
