"""Wrong attentions and backends."""

from __future__ import annotations

from contracts.wrong_stages.cases import Wrong

BACKEND = "def backend(self, device='cpu', dtype='float32', numerics='fast'):\n    return Tensors(TORCH)"


def _layout(name: str, code: str, words: str, base: str = "PerSequenceStage", technique: str = "orca") -> Wrong:
    body = f"def layout(self, work, placement):\n    r = super().layout(work, placement)\n    return {code}"
    return Wrong(name, body, "layout", words, base, technique)


def _tensors(name: str, body: str, method: str, words: str) -> Wrong:
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return Wrong(name, BACKEND, method, words, head=f"class Tensors(PerSequenceAttention):\n{lines}")


ATTEND = "def attend(self, heads, *rest):\n    r = super().attend(heads, *rest)\n    return "
BATCH = "def batch(self, plan, sequences, cache):\n    r = super().batch(plan, sequences, cache)\n    return "

ATTENTIONS = [
    _layout("lays out nothing", "None", "returned None: give Layout"),
    _layout("waves of pairs", "replace(r, waves=((0, len(work)),))", "waves[0] is (0, 3): give Span"),
    _layout("leaves work out", "replace(r, waves=(Span(0, 1),))", "cover all 3"),
    _layout("passes of its own", "replace(r, passes=(Span(0, len(work)),))", "give none, or what memory placed"),
    _layout("attends twice", "replace(r, waves=(Span(0, 2), Span(1, len(work))))", "consecutive ranges"),
    _layout("lanes that forget", "replace(r, lanes=((0,),))", "each of the 3 pieces"),
    _layout("a shape of its own", "replace(r, shape=Rectangle(0, 2, 8, 0, 4))", "what memory placed"),
    _layout("counts wrongly", "r.waves[7]", "raised IndexError"),
    Wrong(
        "lays out no placement",
        "def layout(self, work):\n    return Layout()",
        "layout",
        "called as layout(work, placement)",
    ),
    Wrong("a backend without a module", "tensors = 'Tensors'", "", "give 'module:class'"),
    Wrong("checks by True", "def check(self, device, dtype):\n    return True", "check", "and returns nothing"),
    Wrong(
        "no backend",
        "def backend(self, device='cpu', dtype='float32', numerics='fast'):\n    return object()",
        "backend",
        "which has no 'operators'",
    ),
    Wrong("a backend that is no name", "tensors = dict", "", "whose tensors is <class 'dict'>: give str"),
    Wrong("a backend elsewhere", "tensors = 'nowhere:Tensors'", "backend", "raised ModuleNotFoundError"),
    Wrong(
        "a backend by position",
        "def backend(self, device='cpu', dtype='float32', /):\n    pass",
        "backend",
        "called as backend(device, dtype, numerics)",
    ),
    _tensors("attends to nothing", f"{ATTEND}None", "attend", "a result that has the shape None"),
    _tensors("attends with heads apart", f"{ATTEND}r.view(len(r), -1, 4)", "attend", "give a tensor of the shape"),
    _tensors("attends in another dtype", f"{ATTEND}r.float()", "attend", "a tensor of torch.float32"),
    _tensors("fails to attend", f"{ATTEND}r @ r", "attend", "raised RuntimeError"),
    _tensors(
        "reads what is not there",
        "def reads(self, plan, span, cache):\n    return plan.lengths",
        "reads",
        "raised AttributeError",
    ),
    _tensors("no batch", f"{BATCH}None", "batch", "give a Batch"),
    _tensors("rows left out", f"{BATCH}replace(r, token_ids=r.token_ids[1:])", "batch", "token_ids has the shape"),
    _tensors("samples too little", f"{BATCH}replace(r, sampled=r.sampled[1:])", "batch", "sampled is"),
    _tensors("waves left out", f"{BATCH}replace(r, waves=())", "batch", "give the plan's 1"),
]
