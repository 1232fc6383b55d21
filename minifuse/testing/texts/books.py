"""Tracks the contents and owners of all KV slots, only from plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Set
from itertools import takewhile
from typing import Any

from minifuse.core.errors import LawBroken
from minifuse.core.measured import measured_of
from minifuse.core.places import Reuse
from minifuse.core.plan import Move, Place, Plan, Work
from minifuse.core.report import NOT_FINITE, Ran, StepReport
from minifuse.core.request import FinishReason, Sequence
from minifuse.core.shapes import Rectangle
from minifuse.stages import Memory
from minifuse.testing.subject import Books
from minifuse.testing.texts.rows import RowBooks

Slot = tuple[str, int]  # tier and number


class TextBooks(Books):
    """Tracks the owners and the contents of every slot.

    Plans that run at the same time may end in any order: no plan may read what another is still writing, or write what
    another has yet to copy. Two sequences may share a slot only for the same token after the same text. A row of a
    rectangle belongs to one sequence, whichever of its columns are in use.

    Args:
        memory: the memory of the run; only its sizes and declarations are read.
        options: the memory's options.
        both_ways: part of its rate that each direction of the link keeps while both are busy; None: one is at a time.
    """

    def __init__(self, memory: Memory, options: Any, slot_bytes: int, both_ways: float | None = None) -> None:
        super().__init__()
        self.capacity = {"device": memory.capacity, "host": memory.host_capacity}
        self.num_slots = self.capacity | {"shared": memory.shared_capacity}
        self.most = getattr(options, "threshold", 1.0) * memory.capacity
        self.most_beyond: float = getattr(options, "beyond", None) or math.inf  # tokens attended beyond the device
        self.slot_bytes = slot_bytes
        self.link_rate = 1.0 if both_ways is None else 2 * both_ways  # of both directions together, at most
        self.pads = "rectangle" in memory.offers  # slots between two sequences count as in use, too
        self.apart = memory.apart  # prompts that wait apart may leave for the host, without their padding
        self.reclaims = memory.reclaims  # memory may drop any KV of evicted sequences: such KV counts as kept
        self.of_conversations = hasattr(options, "keep")  # keeps KV only for conversations and evicted sequences
        self.texts: dict[str, tuple[int, ...]] = {}  # the tokens of each live sequence
        self.turns: dict[str, int] = {}  # conversation, or evicted sequence -> most tokens computed of its text
        self.slots: dict[str, list[Slot]] = {}  # of each sequence, token by token, including slots being written
        self.behind: dict[str, set[Slot]] = {}  # slots that a sequence has beyond its last work, after a hole
        self.written: dict[str, int] = {}  # how many of a sequence's `slots` completed plans have written
        self.contents: dict[Slot, tuple[int, ...]] = {}  # the text up to the token that a slot holds
        self.twins: dict[Slot, list[Slot]] = {}  # device slot -> host slots with copies of its KV
        self.away: dict[str, int] = {}  # newcomers of the plan that begins -> leading tokens on the host
        self.evicting: tuple[str, ...] = ()  # sequences that are evicted by the plan that begins
        self.swapped: list[str] | None = None  # members of `evicting` copied to the host; None: not derived yet
        self.arriving: dict[Slot, int] = {}  # slots being written or copied to -> the step that does so
        self.leaving: dict[int, set[Slot]] = {}  # step -> slots that its moves, not yet completed, copy from
        self.queued: dict[int, Plan] = {}  # plans submitted and not begun
        self.running: set[str] = set()  # sequences of plans that have begun and not completed
        self.found: dict[str, int] = {}  # admitted sequence without work yet -> tokens that it reuses
        self.dropped: tuple[float, set[Slot]] = (0.0, set())  # when sequences last left, and their slots
        self.rows = RowBooks()

    def num_free(self, memory: Memory) -> int:
        return sum(self.capacity.values()) - sum(self.written.values()) if self.apart else super().num_free(memory)

    def submit(self, plan: Plan) -> None:
        self.queued[plan.step] = plan

    def begin(self, plan: Plan, sequences: Mapping[str, Sequence]) -> None:
        """Apply a plan's moves and writes, wave by wave, while other plans run.

        Moves of the moment `behind` have a plan of their own, whose slots are in use until that plan completes.
        """
        self.queued.pop(plan.step, None)
        mine = {work.sequence for work in plan.work}
        self.texts |= {name: tuple(sequences[name].tokens) for name in mine}
        for work in plan.work:
            if (conversation := sequences[work.sequence].request.conversation) is not None:
                self.turns[conversation] = max(self.turns.get(conversation, 0), work.stop)
        fresh: set[Slot] = set()
        self.away = {name: self._num_on_host(name) for name in plan.admitted}
        self.evicting, self.swapped = () if self.reclaims else plan.evicted, None
        for moment in ("first", "behind", "before"):
            self._move(plan, mine, moment)
        self._evict(plan)
        for number, (start, stop) in enumerate(plan.waves):
            if number:
                self._move(plan, mine, "before", number)
            for work, place in zip(plan.work[start:stop], plan.places[start:stop], strict=True):
                self._compute(plan.step, work, place, fresh)
            self._move(plan, mine, "after", number)
        beyond = sum(work.stop for work, place in zip(plan.work, plan.places, strict=True) if place.tier != "device")
        if beyond > self.most_beyond:
            raise LawBroken("budget", f"step {plan.step} attends {beyond} tokens beyond the device")
        self.running |= mine
        self.found = {name: count for name, count in self.found.items() if name not in mine}
        self.found |= {
            one.sequence: one.num_tokens for one in map(Reuse._make, plan.reused) if one.sequence not in mine
        }
        self._check_owners(fresh)
        if isinstance(plan.shape, Rectangle):
            here = {
                name: [at for tier, at in slots if tier == "device" and (tier, at) not in self.twins]
                for name, slots in self.slots.items()
            }
            self.rows.check_owners(plan.shape, here)
            self.rows.use(plan.shape, [at for slots in here.values() for at in slots])
        self._check_reused(plan)

    def _check_reused(self, plan: Plan) -> None:
        """Check that each token of a newcomer is computed or reused before sampling."""
        reused = {one.sequence: one.num_tokens for one in map(Reuse._make, plan.reused)}
        for name in plan.admitted:
            work = [item for item in plan.work if item.sequence == name]
            computed = sum(item.num_tokens for item in work)
            length = len(self.texts.get(name, ()))
            if work and work[-1].stop == length and computed + reused.get(name, 0) != length:
                raise LawBroken("counting", f"{name} has {length} tokens, of which {work} and {plan.reused} are told")
        swapped = sum(move.num_tokens for move in plan.moves if move.kind == "swap_in")
        found = sum(one.on_host for one in map(Reuse._make, plan.reused))
        if plan.admitted and found != (swapped or sum(self.away.values())):  # what is uploaded also stays on the host
            raise LawBroken("counting", f"step {plan.step} swaps in {swapped} tokens, and tells {plan.reused}")

    def _num_on_host(self, name: str) -> int:
        return sum(tier == "host" for tier, _ in self.slots.get(name, ()))

    def _compute(self, step: int, work: Work, place: Place, fresh: set[Slot]) -> None:
        now: list[Slot] = [(place.tier, slot) for slot in place.slots(0, work.stop)]
        text = self.texts[work.sequence]
        for i, slot in enumerate(now):
            if i >= work.start:
                fresh.add(slot)
                self._write(step, slot, text[: i + 1])
            elif self.contents.get(slot) != text[: i + 1] or self.arriving.get(slot, step) != step:
                raise LawBroken("conservation", f"{work} reads token {i} from {slot}, where it is not")
        if self.reclaims:  # behind a hole there may be more
            rest = enumerate(place.slots(work.stop, min(len(text), place.capacity)), work.stop)
            self.behind[work.sequence] = {
                ("device", slot) for i, slot in rest if self.contents.get(("device", slot)) == text[: i + 1]
            }
        self.slots[work.sequence] = now

    def _evict(self, plan: Plan) -> None:
        """Reduce evicted sequences to their KV on the host, up to the first gap.

        If memory `reclaims` KV, forget evicted sequences instead.
        """
        copies = {
            name: [self._copy_of(slot, name) for slot in self.slots[name][: self.written[name]]]
            for name in self.evicting
        }
        for name in plan.evicted:
            kept = self.slots[name][: self.written[name]]
            if self.reclaims:
                self.turns[name] = max(self.turns.get(name, 0), len(kept))
                del self.slots[name], self.written[name]
                continue
            away = copies[name]
            for slot in kept:
                self.twins.pop(slot, None)
            lost = (i for i, s in enumerate(away) if s[0] != "host" or self.arriving.get(s, plan.step) != plan.step)
            self.slots[name] = away[: next(lost, len(away))]
            self.written[name] = len(self.slots[name])
            if not self.slots[name]:
                del self.slots[name], self.written[name]  # to be computed again

    def _copy_of(self, slot: Slot, name: str) -> Slot:
        """Return the host slot of a sequence's copy of `slot`, otherwise `slot` itself.

        If several evicted sequences share `slot`, each has its own copy, stored in the order of eviction.
        """
        if slot not in self.twins:
            return slot
        if self.swapped is None:
            self.swapped = self._find_swapped()
        holders = [other for other in self.swapped if slot in self.slots[other]]
        return dict(zip(holders, self.twins[slot], strict=False)).get(name, slot)

    def _find_swapped(self) -> list[str]:
        """Return the evicted sequences that were copied to the host, in the order of eviction.

        Sequences that share a slot may outnumber its copies: then some sequences were dropped. A copy of a
        slot with one owner shows that this owner was copied.
        """
        kept = {
            name: [slot for slot in self.slots[name][: self.written[name]] if slot[0] != "host"]
            for name in self.evicting
        }
        holders = Counter(slot for slots in kept.values() for slot in {*slots})
        copies = Counter({slot: len(twins) for slot, twins in self.twins.items()})

        def doubt(name: str) -> int:
            alone = [copies[slot] > 0 for slot in kept[name] if holders[slot] == 1]
            return 1 if not alone else 0 if all(alone) else 2

        found = set()
        for name in sorted(self.evicting, key=doubt):
            taken = [*takewhile(copies.__getitem__, kept[name])]
            copies.subtract(taken)
            found |= {name} if taken else set()
        return [name for name in self.evicting if name in found]

    def _move(self, plan: Plan, mine: set[str], moment: str, wave: int = 0) -> None:
        for move in plan.moves:
            if move.moment == moment and move.wave == wave:
                for i in range(move.num_tokens):
                    source, target = (move.source_tier, move.source + i), (move.target_tier, move.target + i)
                    self._copy(plan.step, move, source, target, mine)

    def _copy(self, step: int, move: Move, source: Slot, target: Slot, mine: set[str]) -> None:
        """Copy a slot, and move its owners to the copy.

        Owners keep the source if the move is a `copy` or goes to the host. After an upload, the KV is on both tiers.
        """
        if move.moment == "behind" and move.target_tier == "device":
            self._leave_device(source)
        owners = {name for name, slots in self.slots.items() if source in slots}
        stays = move.kind == "copy" or move.target_tier == "host"
        if not stays and (owners & self.running) - mine:
            raise LawBroken("conservation", f"{move} takes {owners} from under another worker")
        if source not in self.contents or self.arriving.get(source, step) != step:
            raise LawBroken("conservation", f"{move} copies from {source}, where nothing is yet")
        self._write(step, target, self.contents[source])
        self.leaving.setdefault(step, set()).add(source)
        if not stays:
            self._relocate(owners, source, target)
        if move.kind == "upload":
            self.twins[target] = [source]
        elif move.target_tier == "host":
            self.twins.setdefault(source, []).append(target)

    def _leave_device(self, copy: Slot) -> None:
        """Move a device slot's owners to its copy on the host, which will be fetched."""
        for slot in [slot for slot, twins in self.twins.items() if copy in twins]:
            del self.twins[slot]
            self._relocate([*self.slots], slot, copy)

    def _relocate(self, names: Collection[str], source: Slot, target: Slot) -> None:
        for name in names:
            self.slots[name] = [target if slot == source else slot for slot in self.slots[name]]

    def _write(self, step: int, slot: Slot, text: tuple[int, ...]) -> None:
        """Overwrite a slot: its contents are lost unless they have been copied to the host."""
        if any(slot in slots for other, slots in self.leaving.items() if other != step):
            raise LawBroken("conservation", f"step {step} writes {slot}, which another step may yet copy")
        if slot[0] == "host":
            rest = {device: [host for host in twins if host != slot] for device, twins in self.twins.items()}
            self.twins = {device: twins for device, twins in rest.items() if twins}
        elif slot in self.twins:
            copies = {
                name: self._copy_of(slot, name) if name in self.evicting else self.twins[slot][-1]
                for name, slots in self.slots.items()
                if slot in slots
            }
            del self.twins[slot]
            for name, copy in copies.items():
                self._relocate([name], slot, copy)
        self.contents[slot] = text
        self.arriving[slot] = step

    def _check_owners(self, fresh: Set[Slot]) -> None:
        """Check that sequences share slots only for the same text.

        Args:
            fresh: slots that are being written; sequences must not share any of these.
        """
        owner: dict[Slot, tuple[str, int]] = {}
        for name, slots in self.slots.items():
            for i, slot in enumerate(slots):
                other, at = owner.setdefault(slot, (name, i))
                if other != name and (
                    slot in fresh or at != i or self.texts[name][: i + 1] != self.texts[other][: i + 1]
                ):
                    raise LawBroken("conservation", f"slot {slot} belongs to {other} and to {name}")
                if not 0 <= slot[1] < self.num_slots[slot[0]]:
                    raise LawBroken("budget", f"{name} uses slot {slot} of {self.num_slots}")

    def ran(self, plan: Plan, ran: Ran) -> None:
        for name, stop in {work.sequence: work.stop for work in plan.work}.items():  # the last of several spans
            if name in ran.tokens:
                (self.tokens[name, stop],) = ran.tokens[name]
            elif name in ran.not_finite:
                self.tokens[name, stop] = NOT_FINITE

    def complete(self, report: StepReport, held: Collection[str]) -> None:
        failed = {name for name, reason in report.finished.items() if reason is FinishReason.NAN}
        if late := report.finished.keys() - report.tokens.keys() - failed:
            raise LawBroken("progress", f"{late} left with step {report.plan.step}, after their last token")
        step = report.plan.step
        self._check_transfers(report)
        self.leaving.pop(step, None)
        self.arriving = {slot: other for slot, other in self.arriving.items() if other != step}
        done = [work for work in report.plan.work if work.sequence in self.slots]  # the others were dropped before
        self.written |= {work.sequence: work.stop for work in done}
        self.running.difference_update(work.sequence for work in report.plan.work)
        kept = {slot for name, count in self.written.items() for slot in self.slots[name][:count]}
        self._check_usage(report, kept)
        self._drop(held, report.ended_s)

    def _check_usage(self, report: StepReport, kept: Collection[Slot]) -> None:
        """Check that memory counts the tokens written and needed, and no others except padding.

        A token on both tiers counts on only one of them.
        """
        usage = report.usage
        on_both = sum(slot in self.twins for slot in kept)
        on_host = sum(slot[0] == "host" for slot in kept)
        on_device = len(kept) - on_host - on_both
        right = on_device <= usage.used <= usage.reserved <= usage.capacity == self.capacity["device"]
        right &= on_host <= usage.host <= min(on_host + on_both, self.capacity["host"])
        if not right or usage.used + usage.host < len(kept):
            found = f"{on_device} needed tokens are on the device, {on_host} on the host, {on_both} on both"
            raise LawBroken("conservation", f"{found}, and memory has {usage}")
        if usage.used > self.most + 1e-6:
            raise LawBroken("budget", f"memory has {usage}, and its threshold is {self.most:g} tokens")
        ended_s, left = self.dropped  # slots that another plan gave up at this moment still count
        lying = {slot for slots in self.slots.values() for slot in slots if slot[0] == "device"}
        lying |= {slot for name, slots in self.behind.items() if name in self.slots for slot in slots}
        lying |= left if ended_s == report.ended_s else set()
        for plan in self.queued.values():  # a shared beginning counts from its placement on
            for work, place in zip(plan.work, plan.places, strict=True):
                lying |= {("device", slot) for slot in place.slots(0, work.stop)}
        most = len(lying) + sum(self.found.values())
        if isinstance(report.plan.shape, Rectangle):
            most = self.rows.use(report.plan.shape, [slot for _, slot in lying])
        elif self.pads:
            most = usage.reserved
        if usage.used > most:
            raise LawBroken("conservation", f"{len(lying)} tokens lie on the device, and memory has {usage}")
        if self.of_conversations and max(usage.kept, usage.kept_on_host) > sum(self.turns.values()):
            raise LawBroken("conservation", f"conversations have computed {self.turns} tokens, and memory has {usage}")
        others = Counter(tier for tier, _ in self.contents.keys() - set(kept))
        for plan in self.queued.values():  # its moves have been decided
            for move in plan.moves:
                others[move.target_tier] += move.num_tokens
        if usage.kept > others["device"] or usage.kept_on_host > others["host"]:
            found = f"{others['device']} slots of the device and {others['host']} of the host may be kept"
            raise LawBroken("conservation", f"{found}, and memory has {usage}")

    def abort(self, name: str, held: Collection[str]) -> None:
        self._drop(held, math.nan)

    def _drop(self, held: Collection[str], now: float) -> None:
        """Forget the sequences that memory need not hold."""
        gone = {slot for name, slots in self.slots.items() if name not in held for slot in slots}
        self.dropped = now, gone | (self.dropped[1] if self.dropped[0] == now else set())
        for books in (self.slots, self.written, self.texts, self.behind, self.found):
            for name in [name for name in books if name not in held]:
                del books[name]

    def _check_transfers(self, report: StepReport) -> None:
        """Check that a step carries its moves' bytes, and takes at least their time."""
        carried, plan = measured_of(report), report.plan
        for tier, found in (("host", carried.to_host_bytes), ("device", carried.to_device_bytes)):
            mine = [move for move in plan.moves if move.crosses and (move.target_tier == "host") == (tier == "host")]
            tokens = sum(move.num_tokens for move in mine)
            if found != tokens * self.slot_bytes:
                raise LawBroken("counting", f"step {plan.step} moves {tokens} tokens to the {tier}, in {found} bytes")
        ways = carried.to_host_s, carried.to_device_s
        took, busy = report.ended_s - report.started_s, max(*ways, sum(ways) / self.link_rate)
        if took < busy - 1e-9:
            raise LawBroken("counting", f"step {plan.step} took {took} s, and its transfers {busy} s")
