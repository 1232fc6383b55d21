"""Wrong batching policies."""

from __future__ import annotations

from typing import Any

from contracts.wrong_stages.cases import Wrong


def _proposal(name: str, code: str, words: str, base: str = "Iteration", **more: str) -> Wrong:
    """A policy whose proposal `p` is changed by some code."""
    lines = "\n".join(f"    {line}" for line in code.strip().split("\n"))
    body = f"def propose(self, worker, now, memory):\n    p = super().propose(worker, now, memory)\n{lines}"
    return Wrong(name, body, "propose", words, base, **more)


GROWING: dict[str, Any] = {
    "base": "PrefillFirst",
    "technique": "vllm",
    "capacity": 14,
    "settings": {"memory.block_size": 1},
}
SOME = "return replace(p, work=p.work and "  # other work, where there is any

BATCHINGS = [
    _proposal("returns nothing", "p.work", "returned None: give Proposal"),
    _proposal("is a generator", "yield p", "returned a generator"),
    Wrong("is a coroutine", "async def propose(self, worker, now, memory):\n    return 1", "propose", "a coroutine"),
    _proposal("work in a list", f"{SOME}list(p.work))", "give tuple[Work, ...]"),
    _proposal("work of plain tuples", f"{SOME}tuple(tuple(w) for w in p.work))", "work[0] is ('r0', 0, 3"),
    _proposal("no such sequence", f"{SOME}(Work('r9', 0, 1),))", "whose sequence is unknown"),
    _proposal("never admitted", "return replace(p, admit=())", "was never admitted"),
    _proposal("an empty span", f"{SOME}(*p.work, Work(p.work[0].sequence, 3, 3)))", "start below stop"),
    _proposal("a negative span", f"{SOME}(Work(p.work[0].sequence, -1, 3),))", "start below stop"),
    _proposal("beyond the text", f"{SOME}tuple(w._replace(stop=w.stop + 1) for w in p.work))", "memory misses [0, 3)"),
    _proposal(
        "leaves a gap", f"{SOME}tuple(w._replace(start=w.start + 1) for w in p.work if w.stop > 2))", "memory misses"
    ),
    _proposal("the same work twice", f"{SOME}(*p.work, p.work[0]))", "once"),
    _proposal(
        "a number of numpy",
        f"{SOME}tuple(w._replace(stop=np.int64(w.stop)) for w in p.work))",
        "work[0].stop is np.int64(3): give int",
    ),
    _proposal("a cell of a text", f"{SOME}tuple(w._replace(cell='lstm') for w in p.work))", "a text has no cells"),
    _proposal("admits twice", "return replace(p, admit=p.admit * 2)", "a second time"),
    _proposal(
        "admits again",
        "self.all = getattr(self, 'all', p.admit)\nreturn replace(p, admit=self.all)",
        "was to admit r0, which is running",
    ),
    _proposal(
        "admits another one", "return replace(p, admit=(*p.admit, Sequence(p.admit[0].request)))", "not yet released"
    ),
    _proposal("admits without work", "return Proposal(admit=p.admit)", "without work that admits"),
    _proposal("evicts a newcomer", "return replace(p, work=p.work[1:], evict=p.admit[:1])", "r0, which is received"),
    _proposal(
        "evicts under a memory that cannot",
        "running = tuple(self.running)[:1]\nif len(self.running) < 2 or p.admit: return p\n"
        "return replace(p, evict=running, work=tuple(w for w in p.work if w.sequence != running[0].id))",
        "only a memory with evicts = True",
    ),
    _proposal(
        "evicts and computes", "return p if p.admit else replace(p, evict=tuple(self.running)[:1])", "and to work on it"
    ),
    _proposal("a reason of no request", "return replace(p, reasons=(Reason('a', 'r99', 'b'),))", "the id of a request"),
    _proposal("asks for now", "return Proposal(wake_at=now)", "later than now"),
    _proposal("asks for the end of time", "return Proposal(wake_at=math.inf)", "later than now"),
    _proposal("asks in words", "return Proposal(wake_at='soon')", "give float | None"),
    _proposal("wakes beside work", "return replace(p, wake_at=now + 1)", "only one that waits is woken"),
    _proposal("a phase that is a text", "return replace(p, phase='running')", "give Phase"),
    _proposal("a phase that ends", "return replace(p, phase=Phase.FINISHED)", "Phase.RUNNING"),
    _proposal("writes tokens", "for s in self.running: s.tokens.append(1)\nreturn p", "the engine alone writes"),
    _proposal("growing is a number", "return replace(p, growing=1)", "growing is 1: give bool"),
    _proposal("waves that leave work out", "return replace(p, waves=(Span(0, 1),))", "cover all 3"),
    _proposal("over its budget", "self.token_budget = 2\nreturn p", "its token_budget is 2", head="", base="Free"),
    _proposal("names nothing", "return p.wrok", "raised AttributeError"),
    _proposal("calls itself", "return self.propose(worker, now, memory)", "raised RecursionError"),
    _proposal("exits", "sys.exit()", "raised SystemExit at mine.py"),
    _proposal("refuses too late", "raise RequestRefused('Request is too long.')", "raised RequestRefused"),
    _proposal("gives the room an id", "memory.room().admit('r0')\nreturn p", "raised AttributeError ('str'"),
    Wrong(
        "admits what has no room",
        "def propose(self, worker, now, memory):\n"
        "    new, self.running = tuple(self.waiting), list(self.waiting)\n"
        "    return Proposal(tuple(Work(s.id, 0, len(s)) for s in new), new)",
        "propose",
        "cannot place (budget",
        "Free",
        "orca",
        "",
        20,
    ),
    Wrong(
        "takes other arguments", "def propose(self, now, memory):\n    pass", "propose", "called as propose(worker, now"
    ),
    Wrong("receives nothing", "def receive(self):\n    pass", "receive", "called as receive(sequence)"),
    Wrong(
        "fails to receive",
        "def receive(self, sequence):\n    self.queue.append(sequence)",
        "receive",
        "no attribute 'queue'",
    ),
    Wrong(
        "fails to release",
        "def release(self, sequence):\n    self.running.remove('x')",
        "release",
        "raised KeyError ('x')",
    ),
    Wrong("fails to commit", "def commit(self, plan, now):\n    [][0]", "commit", "raised IndexError"),
    Wrong("ranks by nothing", "def rank(self, sequence):\n    pass", "rank", "returned None: give a number"),
    Wrong("ranks by NaN", "def rank(self, sequence):\n    return math.nan", "rank", "none of them NaN"),
    Wrong(
        "ranks by this and that",
        "def rank(self, sequence):\n    return 1 if sequence.id == 'r0' else (1, 2)",
        "rank",
        "returned (1, 2): give all ranks as numbers",
    ),
    Wrong(
        "admits by True",
        "def admission(self, sequence, joining, now):\n    return True",
        "admission",
        "returned True: give Reason(code",
    ),
    Wrong(
        "a reason of another",
        "def admission(self, sequence, joining, now):\n    return Reason('a', 'r7', 'b')",
        "admission",
        "give Reason(code, 'r0', text)",
    ),
    Wrong(
        "wakes by True",
        "def wake_at(self, now):\n    return True\n"
        "def admission(self, sequence, joining, now):\n    return Reason('a', sequence.id, 'b')",
        "wake_at",
        "returned True: give None",
    ),
    Wrong("no victims", "def victims(self, running):\n    pass", "victims", "returned None", **GROWING),
    Wrong(
        "victims of its own",
        "def victims(self, running):\n    yield 'r0'",
        "victims",
        "sequences of the list",
        **GROWING,
    ),
    Wrong(
        "fails at the second victim",
        "def victims(self, running):\n    yield from running[:0]\n    1 / 0",
        "victims",
        "ZeroDivisionError",
        **GROWING,
    ),
    Wrong("workers in words", "workers = '2'", "__init__", "whose workers is '2'"),
    Wrong("a budget of nothing", "token_budget = 0", "__init__", "whose token_budget is 0"),
    Wrong("an init without options", "def __init__(self):\n    super().__init__()", "__init__", "raised TypeError"),
    Wrong(
        "a misspelt rule",
        "def admision(self, sequence, joining, now):\n    pass",
        "admision",
        "did you mean 'admission'",
        "QueuePolicy",
    ),
    Wrong("a misspelt hook", "def wakeat(self, now):\n    return now + 1", "wakeat", "did you mean 'wake_at'"),
    Wrong("no base", "def __init__(self, *given): self.own = given", "__init__", "begin it with super()"),
    Wrong("no base's", "token_budget = None\ndef __init__(self, *a): pass", "receive", "begin it with super()"),
    Wrong(
        "a property that fails",
        "token_budget = property(lambda self: self.options.budgte)\ndef __init__(self, *a): super().__init__(*a)",
        "__init__",
        "no attribute 'budgte') at mine.py, line ",
    ),
    Wrong("no rule", "", "", "abstract method admission", "QueuePolicy"),
]
