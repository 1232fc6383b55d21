"""What goes wrong when rows of a padded batch change hands: shaping, embedding, eviction, the threshold."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from conformance.defects.harness import Patch, defect, instead_of

from minifuse.batching.decoupled import Decoupled
from minifuse.batching.rebatch import Rebatch
from minifuse.core.plan import Move, Placement, Proposal, Span
from minifuse.core.request import Phase
from minifuse.core.shapes import Rectangle
from minifuse.memory.rows import host_runs, shaped, window
from minifuse.memory.rows.copied import Copied
from minifuse.memory.rows.fetched import Fetched
from minifuse.memory.rows.host_runs import HostRuns
from minifuse.memory.rows.prefilled import Prefilled
from minifuse.memory.rows.shaped import Shaped, ShapedTrial
from minifuse.memory.rows.window import Window

TIGHT = {"kinds": ("few",), "batching__max_batch": 3, "memory__rows": 2}
APART = {**TIGHT, "memory__prefill": 0.4, "memory__threshold": 1.0}
CHANGING = {**TIGHT, "batching__order": "priority", "batching__preempt": True, "memory__host": None}


@defect("baton", "conservation", "ghost", "layout", **TIGHT, memory__insert="shape")
@instead_of(window, "shaped")
def padded_before_its_token(right: Any, spans: tuple[Span, ...], new: Span) -> tuple[Span, ...]:
    """Others get their token in the last of the columns that a newcomer computes, and read it in the first."""
    return right(spans, Span(new.start - 1, new.stop) if new.stop - new.start > 1 else new)


@defect("baton", "budget", "layout", **TIGHT, memory__insert="shape", memory__threshold=1.0)
@instead_of(Shaped, "place")
def leading_padding_is_never_released(place: Any, self: Shaped, proposal: Proposal, now: float) -> Placement:
    begin = self.window.begin
    placement = place(self, proposal, now)
    self.window.begin = min(begin, self.window.begin)
    return replace(placement, shape=placement.shape._replace(begin=self.window.begin))


@defect("baton", "layout", "conservation", **TIGHT, memory__insert="shape")
@instead_of(Window, "enter")
def a_column_too_many_is_released(enter: Any, self: Window, newcomers: Any) -> Span:
    begin = self.begin
    computed: Span = enter(self, newcomers)
    self.begin += self.begin > begin
    return computed


@defect("baton-pd", "conservation", "layout", **APART)
@instead_of(shaped, "copies")
def embedded_a_column_too_early(copies: Any, kind: Any, before: Any, after: Any, count: int) -> list[Move]:
    return [move._replace(target=move.target - 1) for move in copies(kind, before, after, count)]


@defect("baton-pd", "conservation", **APART)
@instead_of(shaped, "copies")
def embedded_without_its_last_token(copies: Any, kind: Any, before: Any, after: Any, count: int) -> list[Move]:
    found: list[Move] = copies(kind, before, after, count - 1)
    return found


@defect("baton-pd", "conservation", **APART)
@instead_of(shaped, "copies")
def embedded_with_all_that_its_row_has_room_for(
    copies: Any, kind: Any, before: Any, after: Any, count: int
) -> list[Move]:
    found: list[Move] = copies(kind, before, after, min(before.capacity, after.capacity) + 1)
    return found


@defect("baton-pd", "conservation", **APART)
@instead_of(Prefilled, "give_back")
def its_row_is_given_back_twice(give_back: Any, self: Prefilled, name: str) -> Any:
    self.free.free(*self.rows[name].slots)
    return give_back(self, name)


@defect("baton-pd", "conservation", kinds=("few",), batching__max_batch=4, memory__rows=1, memory__prefill=0.4)
@instead_of(HostRuns, "swap_out")
def leaves_for_the_host_without_being_copied(leave: Any, self: HostRuns, *arguments: Any) -> list[Move] | None:
    return None if leave(self, *arguments) is None else []


FETCHING = {"kinds": ("few",), "batching__max_batch": 4, "memory__rows": 1, "memory__prefill": 0.4}
FETCHING |= {"memory__prefetch": 0.2, "memory__host": None, "memory__threshold": 1.0}


@defect("baton-pd", "conservation", **FETCHING)
@instead_of(Fetched, "fetch")
def fetched_before_it_is_on_the_host(fetch: Any, self: Fetched, names: Any) -> tuple[Move, ...]:
    """The plan in flight has yet to swap it out."""
    self.away.arriving.clear()
    moves: tuple[Move, ...] = fetch(self, names)
    return moves


LATE = {**FETCHING, "kinds": ("crowd",), "batching__max_batch": 6, "batching__padding": 0.5}


@defect("baton-pd", "conservation", **LATE)
@instead_of(Fetched, "fetch")
def embedded_before_it_has_landed(fetch: Any, self: Fetched, names: Any) -> tuple[Move, ...]:
    moves: tuple[Move, ...] = fetch(self, names)
    if self.flight is not None:
        self.places[self.flight.sequence] = self.flight.place
    return moves


BESIDE = {**APART, "memory__prefetch": 0.0, "batching__prompts": "worker", "batching__preempt": False}


@defect("baton-pd", "conservation", "ghost", **BESIDE)
def a_row_is_given_away_while_it_is_copied(patch: Patch) -> None:
    """Another worker computes a prompt where the batch's plan has yet to copy one from."""
    patch.setattr(Copied, "begin", lambda self, first: None)


@defect("baton-pd", "conservation", "counting", "contract", **BESIDE)
@instead_of(Decoupled, "_prefill")
def joins_while_its_prompt_is_computed(prefill: Any, self: Decoupled, memory: Any) -> Any:
    proposal = prefill(self, memory)
    self.commit(SimpleNamespace(phase=Phase.PREPROCESSING), 0.0)  # type: ignore[arg-type]
    return proposal


@defect("baton-pd", "conservation", **BESIDE | {"memory__rows": 1, "batching__max_batch": 4, "memory__host": None})
def joins_while_it_leaves_for_the_host(patch: Patch) -> None:
    patch.setattr(HostRuns, "has_arrived", HostRuns.__contains__)


@defect("baton", "conservation", **CHANGING)
@instead_of(host_runs, "copies")
def returns_a_token_late(copies: Any, kind: Any, before: Any, after: Any, count: int) -> list[Move]:
    """What is copied to the host, and back, begins with the second token."""
    device = "source" if kind == "swap_out" else "target"
    return [move._replace(**{device: getattr(move, device) + 1}) for move in copies(kind, before, after, count)]


@defect("baton", "conservation", "contract", **{**CHANGING, "memory__host": 0})
@instead_of(Shaped, "_leave")
def dropped_and_taken_for_kept(leave: Any, self: Shaped, names: list[str]) -> list[Move]:
    """The host has no room: the KV of an evicted sequence is lost, and its next token is computed on."""
    kept = {name: self.books.cached[name] for name in names}
    moves: list[Move] = leave(self, names)
    self.books.cached |= kept
    self.books.num_written += sum(kept.values())
    return moves


@defect("baton", "queue", **CHANGING)
def evicts_any_for_any(patch: Patch) -> None:
    """A newcomer takes a place whatever its priority."""
    patch.setattr(Rebatch, "displaces", lambda self, newcomer, running: True)


@defect("baton", "budget", **{**TIGHT, "memory__threshold": 0.6})
@instead_of(ShapedTrial, "_full")
def the_threshold_is_that_of_newcomers_only(full: Any, self: ShapedTrial, joining: Any, growing: bool) -> Any:
    """Running sequences grow, and none of them leaves."""
    return full(self, joining, growing) if joining else ("", "")


@defect("baton-pd", "queue", **APART, batching__padding=0.5)
@instead_of(Decoupled, "_prefill")
def the_last_prompt_leads(prefill: Any, self: Decoupled, memory: Any) -> Any:
    """Prompts of similar length as the last are computed first."""
    tickets = [self.waiting.remove(one.id) for one in [*self.waiting]]
    for i, (_, number, sequence) in enumerate(tickets):
        self.waiting.add((-i, number, sequence))
    return prefill(self, memory)


@defect("baton-pd", "queue", **APART)
@instead_of(Decoupled, "propose")
def the_last_computed_joins_first(propose: Any, self: Decoupled, worker: int, now: float, memory: Any) -> Any:
    tickets = [self.ready.remove(one.id) for one in [*self.ready]]
    for i, (_, number, sequence) in enumerate(tickets):
        self.ready.add((-i, number, sequence))
    return propose(self, worker, now, memory)


@defect("baton", "ghost", **TIGHT, memory__insert="shape")
def a_gap_is_taken_for_text(patch: Patch) -> None:
    """The mask begins with a sequence's first column and ends with its last."""
    from minifuse.attention import padded

    view_of = padded.view_of

    def wrong(*arguments: Any) -> Any:
        view = view_of(*arguments)
        return view._replace(held=[[(min(held)[0], max(held)[1])] if held else [] for held in view.held])

    patch.setattr(padded, "view_of", wrong)


# --- under a policy that admits a newcomer only if every answer has room to its end


@defect("iteration+shaped+padded", "layout", memory__insert="embed")
@instead_of(Window, "enter")
def a_column_that_is_still_read_is_released(enter: Any, self: Window, newcomers: Any) -> Any:
    begin = self.begin
    computed = enter(self, newcomers)
    self.begin += self.begin > begin
    return computed


@defect("iteration+shaped+padded", "conservation", memory__insert="shape")
@defect("iteration+shaped+padded", "conservation", memory__insert="embed")
def the_row_that_began_first_counts_as_free(patch: Patch) -> None:
    patch.setattr(Shaped, "check_integrity", lambda self: None)
    enter = Window.enter

    def wrong(self: Window, newcomers: Any) -> Any:
        if newcomers and self.rows:
            self.free.insert(0, next(iter(self.rows.values())))
        return enter(self, newcomers)

    patch.setattr(Window, "enter", wrong)


@defect("iteration+shaped+padded", "layout", "ghost", "budget", memory__insert="shape")
def the_window_grows_into_its_own_first_columns(patch: Patch) -> None:
    patch.setattr(Shaped, "check_integrity", lambda self: None)
    full = ShapedTrial._full

    def wrong(self: ShapedTrial, *arguments: Any) -> tuple[str, str]:
        found = full(self, *arguments)
        return found if found[0] == "rows-full" else ("", "")

    patch.setattr(ShapedTrial, "_full", wrong)


@defect("iteration+shaped+padded", "conservation", "budget", "layout", memory__insert="embed")
def rows_do_not_wrap_around(patch: Patch) -> None:
    """A window that is extended before their beginning takes the end of the row before."""
    patch.setattr(Rectangle, "slot", lambda self, row, column: self.offset + row * self.stride + column)
