"""Cases that can be done by hand."""

from stage import ROW, Shuffled, asked, drawn, gathered, side_by_side, told

from minifuse.core.request import Request
from minifuse.labs.engine import run
from minifuse.labs.judge import Unmet

FIG_6 = [bit == "1" for bit in "0011100100110111"]
CASES = [  # what is live, what stays, where the best window begins (no other is as good), how many lie outside
    (FIG_6, None, 7, 3),
    (FIG_6, 2, 2, 4),
    ([True, True, False, False, True], None, 0, 1),
    ([True, True, False], None, 0, 0),
    ([False, False, True], 2, 2, 0),
    ([True, False, False, False, True, True], None, 3, 1),
    ([True, False, False, False, True, True], 0, 0, 2),
    ([True, True], 1, 0, 0),
]


def test_windows_by_hand(work):
    """The windows of Fig. 6, without and with a buffer that stays, and of six smaller cases begin where they should."""
    for live, stays, offset, _ in CASES:
        found = work.call("window_offset", live, stays, form=int)
        if found != offset:
            raise Unmet(f"window_offset of {told(live, stays)} is {found}, and should be {offset}.")


def test_moves_by_hand(work):
    """The moves of the same cases leave the live buffers side by side, and are as few as by hand."""
    for live, stays, _, count in CASES:
        moves = asked(work, live, stays)
        after = gathered(live, moves)
        if not side_by_side(after):
            raise Unmet(f"{told(live, stays)} becomes {drawn(after)} by the moves {moves}: gather the live buffers.")
        if len(moves) != count:
            raise Unmet(f"moves of {told(live, stays)} copies {len(moves)} buffers, and {count} are enough.")


def test_moves_in_order(work):
    """The buffers of Fig. 6 that are copied, and the places that they are copied to, are both in increasing order."""
    moves = asked(work, FIG_6, None)
    if len(moves) != 3:
        raise Unmet(f"moves of {drawn(FIG_6)} copies {len(moves)} buffers, and 3 are enough and needed.")
    if sorted(moves) != moves or sorted(target for _, target in moves) != [target for _, target in moves]:
        raise Unmet(f"moves of {drawn(FIG_6)} is {moves}: the first numbers are to increase, and the second ones too.")


def test_runs_in_the_engine(work):
    """Four requests run in the engine: when the second has ended, one copy gathers the others, and nothing is idle."""
    requests = [Request(f"r{i}", (1, 2), 6 if i != 1 else 2, ignore_eos=True) for i in range(4)]
    found = run(work, ROW, Shuffled, requests, memory__slots=6, batching__preprocess="inline")
    copies = [move for step in found.steps for move in step["moves"]]
    idle = found.metrics["tokens"]["idle"]
    if len(copies) != 1 or idle:
        told = f"{len(copies)} buffers are copied, and {idle} idle tokens computed: 1 and 0 are right."
        raise Unmet(told, events=found.events)
