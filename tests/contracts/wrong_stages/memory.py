"""Wrong memories."""

from __future__ import annotations

from contracts.wrong_stages.cases import Wrong

PLACE = "def place(self, proposal, now):\n    p = super().place(proposal, now)\n    return "


def _placing(name: str, code: str, words: str, base: str = "Contiguous", technique: str = "orca") -> Wrong:
    return Wrong(name, f"{PLACE}{code}", "place", words, base, technique)


def _returning(method: str, arguments: str, code: str, words: str, **more: str) -> Wrong:
    body = f"def {method}(self, {arguments}):\n    r = super().{method}({arguments})\n    return {code}"
    return Wrong(f"{method} gives {code}", body, method, words, **more)


def _room(name: str, parameters: str, code: str, words: str, method: str = "take") -> Wrong:
    head = (
        f"from minifuse.memory.trial import Trial\n\nclass Rooms(Trial):\n    def take({parameters}):\n        {code}\n"
    )
    return Wrong(name, "def room(self):\n    return Rooms()", method, words, head=head)


def _ahead(name: str, move: str, landed: str, method: str, words: str) -> Wrong:
    """A memory that copies its first token to the host, once."""
    body = (
        "host_capacity = 4\n"
        "def ahead(self, now):\n"
        "    done, self.done = getattr(self, 'done', False), True\n"
        f"    return () if done else ({move},)\n"
        f"def landed(self, moves, now):\n    {landed}"
    )
    return Wrong(name, body, method, words)


MOVE = "Move('swap_out', 0, 0, 1, target_tier='host', moment='behind')"

MEMORIES = [
    _ahead("says nothing of what landed", MOVE, "pass", "landed", "returned None: give KVUsage"),
    _ahead("copies beyond the host", MOVE.replace("0, 0, 1", "0, 4, 1"), "pass", "ahead", "the host 4"),
    _placing("places nothing", "None", "returned None: give Placement"),
    _placing("places in a list", "replace(p, places=list(p.places))", "give tuple[Place, ...]"),
    _placing("a place too few", "replace(p, places=p.places[1:])", "2 places for 3 pieces"),
    _placing(
        "places of tuples", "replace(p, places=tuple(tuple(e) for e in p.places))", "returned (0, 6): give Extent"
    ),
    _placing("all in one place", "replace(p, places=tuple(Extent(0, 20) for e in p.places))", "write slot 0"),
    _placing(
        "outside of memory",
        "replace(p, places=tuple(e._replace(offset=e.offset + 55) for e in p.places))",
        "slots 0 to 59",
    ),
    _placing("before memory", "replace(p, places=tuple(e._replace(offset=-1) for e in p.places))", "slots 0 to 59"),
    _placing("too short", "replace(p, places=tuple(e._replace(capacity=1) for e in p.places))", "it has 1 slots"),
    _placing(
        "a number of numpy",
        "replace(p, places=tuple(e._replace(offset=np.int64(e.offset)) for e in p.places))",
        "an Extent whose offset is np.int64(0): give int",
    ),
    _placing(
        "somewhere else each time",
        "replace(p, places=tuple(e._replace(offset=e.offset + (not proposal.admit)) for e in p.places))",
        "leave it there, or move it",
    ),
    _placing(
        "over what another reads",
        "replace(p, places=(p.places[0], *(e._replace(offset=e.offset - 1) for e in p.places[1:])))",
        "what is shared is not written",
    ),
    _placing("a move of no kind", "replace(p, moves=(Move('teleport', 0, 1, 1),))", "give Literal['shuffle', 'copy'"),
    _placing("a move of nothing", "replace(p, moves=(Move('copy', 0, 1, 0),))", "at least one token"),
    _placing("a move out of memory", "replace(p, moves=(Move('copy', 0, 59, 5),))", "the device has 60 slots"),
    _placing("a move to no host", "replace(p, moves=(Move('swap_out', 0, 0, 1, target_tier='host'),))", "the host 0"),
    _placing(
        "a move behind everything",
        "replace(p, moves=(Move('copy', 0, 1, 1, moment='behind'),))",
        "have a plan of their own",
    ),
    _placing("a pass of half the work", "replace(p, passes=(Span(0, 1),))", "passes are consecutive ranges"),
    _placing(
        "a wave in two passes", "replace(p, passes=(Span(0, 1), Span(1, len(p.places))))", "each wave is in one pass"
    ),
    _placing("waves of nothing", "replace(p, waves=(Span(0, 0),))", "cover all 3"),
    _placing(
        "a rectangle elsewhere",
        "replace(p, shape=p.shape._replace(start=p.shape.start + 1, stop=p.shape.stop + 1))",
        "not what it computes",
        "Padded",
        "static",
    ),
    _placing("no rectangle", "replace(p, shape=None)", "without a shape", "Padded", "static"),
    _placing("a rectangle of no rows", "replace(p, shape=p.shape._replace(rows=0))", "at least 1", "Padded", "static"),
    _placing(
        "a table that is a list",
        "replace(p, places=tuple(e._replace(blocks=list(e.blocks)) for e in p.places))",
        "blocks is [0]: give tuple[int, ...]",
        "Paged",
        "vllm",
    ),
    _placing(
        "another table each time",
        "replace(p, places=tuple(e._replace(blocks=e.blocks[::-1]) for e in p.places) if now > 2 else p.places)",
        "leave it there",
        "Small",
        "vllm",
    ),
    _placing("refuses what its room took", "1 / 0", "raised ZeroDivisionError"),
    Wrong(
        "raises a law",
        "def place(self, proposal, now):\n    raise LawBroken('budget', 'no room')",
        "place",
        "raised LawBroken (budget: no room) at mine.py",
    ),
    _returning("missing", "sequence", "None", "give tuple[Span, ...]"),
    _returning("missing", "sequence", "()", "is always missing"),
    _returning("missing", "sequence", "(Span(0, len(sequence) + 1),)", "of the 3 tokens"),
    _returning("missing", "sequence", "(Span(0, len(sequence) - 1),)", "is always missing"),
    _returning("missing", "sequence", "(Span(len(sequence), len(sequence)),)", "none empty"),
    _returning("missing", "sequence", "(*r, *r)", "in order"),
    Wrong(
        "misses what it never saw",
        "def missing(self, sequence):\n    return (Span({}[sequence.id], len(sequence)),)",
        "missing",
        "asked of requests that wait",
    ),
    _returning("commit", "plan, sampled, now", "None", "give KVUsage"),
    _returning("commit", "plan, sampled, now", "r._replace(used=r.capacity + 1)", "used <= reserved"),
    _returning("commit", "plan, sampled, now", "r._replace(capacity=7)", "which is 60"),
    _returning("commit", "plan, sampled, now", "r._replace(used=-1)", "none below 0"),
    _returning("commit", "plan, sampled, now", "r._replace(host=3)", "on the host 0"),
    Wrong("says not that it evicts", "evicts = False", "room", "with evicts = True", "Small", "vllm", capacity=14),
    Wrong("usage gives None", "def usage(self):\n    return None", "commit", "give KVUsage"),
    _returning("room", "", "None", "give a Room"),
    _returning("room", "", "r.admit", "give a Room"),
    _room("a room that says True", "self, sequence, growing", "return True", "returned True: give Reason(code"),
    _room("a room that fails", "self, sequence, growing", "1 / 0", "raised ZeroDivisionError"),
    _room("a room without growing", "self, sequence", "pass", "raised TypeError", "admit"),
    _room(
        "a room of another's reasons",
        "self, sequence, growing",
        "return Reason('a', 'r5', 'b')",
        "give Reason(code, 'r0', text)",
    ),
    _returning("ahead", "now", "(Move('copy', 0, 1, 1),)", "in a plan of 0 waves"),
    Wrong("fails to release", "def release(self, sequence, now):\n    {}[sequence.id]", "release", "never admitted"),
    Wrong("checks by False", "def check(self, *prompts):\n    return False", "check", "and returns nothing"),
    Wrong("checks one prompt", "def check(self, request):\n    pass", "check", "called as check(prompt, prompt)"),
    Wrong("checks nothing", "def check(self, *prompts):\n    prompts[0].length", "check", "raised AttributeError"),
    Wrong(
        "forgets the time",
        "def commit(self, plan, sampled):\n    return self.usage()",
        "commit",
        "called as commit(plan, sampled, now)",
    ),
    Wrong(
        "too large",
        "def __init__(self, capacity, options):\n    super().__init__(2 * capacity, options)",
        "__init__",
        "whose capacity is 120",
    ),
    Wrong(
        "an init that forgets",
        "def __init__(self, capacity, options):\n    self.size = capacity",
        "__init__",
        "no attribute 'capacity'",
    ),
    Wrong(
        "takes no capacity",
        "def __init__(self, options):\n    super().__init__(10, options)",
        "__init__",
        "raised TypeError",
    ),
]
