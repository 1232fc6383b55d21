"""Lab 8: packing lanes.

A wave has pieces of work, numbered from 0 in the order of arrival. `costs` tells of each how long its attention takes,
`lanes` are lists of numbers of pieces, of each lane in the order of their turn. A lane has `room` places, one for each
of its pieces. All is plain data.
"""

# BEGIN SOLUTION
from bisect import bisect_right
from heapq import heapify, heappop, heappush

# END SOLUTION


def cost(queries: int, context: int, hidden: int, balance: int) -> int:
    """How long the attention of one piece takes: the longer of its arithmetic and its reading, in operations.

    `queries` tokens attend to `context` tokens, themselves included. The hidden size is `hidden`. A machine does
    `balance` operations while it reads one byte.

    >>> cost(10, 10, 100, 1)  # 4 x 10 x 10 x 100 operations, and 4000 + 10 x (80 + 400) bytes
    40000
    >>> cost(1, 10, 100, 2)  # 4000 + 80 + 400 bytes, each as long as 2 operations
    8960
    """
    # BEGIN SOLUTION: count operations and bytes, and compare them in the same unit
    moved = 4 * context * hidden + queries * (8 * context + 4 * hidden)
    return max(4 * queries * context * hidden, balance * moved)
    # END SOLUTION


def lanes(costs: list[int], most: int | None, room: int | None) -> list[list[int]]:
    """Divide the pieces among lanes, greedily (4.2): at most `most` lanes, of at most `room` pieces each.

    Either may be None: as many as it takes.

    >>> lanes([25, 4, 1, 25, 1, 1], None, None)  # figure 9b
    [[0], [3], [1, 2, 4, 5]]
    >>> lanes([10, 3, 1, 3, 3, 1], 2, 3)
    [[0, 2, 5], [1, 3, 4]]
    """
    # BEGIN SOLUTION: open a lane with the longest piece that is left, and fill it while it has a place
    order = sorted(range(len(costs)), key=lambda piece: (costs[piece], -piece))
    left = [costs[piece] for piece in order]
    longest = max(costs, default=0)
    places = len(costs) if room is None else room
    found, ends = [], []
    while order and len(found) != most:
        lane, end, place = [], 0, len(order) - 1
        while place >= 0 and len(lane) < places:
            lane.append(order.pop(place))
            end += left.pop(place)
            place = bisect_right(left, longest - end) - 1
        found.append(lane)
        if len(lane) < places:
            ends.append((end, len(found) - 1))
    heapify(ends)
    while order:
        end, number = heappop(ends)
        found[number].append(order.pop())
        end += left.pop()
        if len(found[number]) < places:
            heappush(ends, (end, number))
    return found
    # END SOLUTION


def bubbles(costs: list[int], prompts: list[bool], lanes: list[list[int]]) -> tuple[int, int, int]:
    """For how long lanes that begin together are idle until the longest of them ends: in type A, in type B, in others.

    `prompts` tells which pieces compute several tokens.

    >>> bubbles([25, 4, 1], [True, True, False], [[0], [1], [2]])  # figure 9a
    (21, 24, 0)
    """
    # BEGIN SOLUTION: which type is the bubble of a lane?
    ends = [sum(costs[piece] for piece in lane) for lane in lanes]
    idle, mixed = [0, 0, 0], any(prompts[piece] for lane in lanes for piece in lane)
    for lane, end in zip(lanes, ends):
        kind = 0 if any(prompts[piece] for piece in lane) else 1 if mixed else 2
        idle[kind] += max(ends) - end
    return tuple(idle)
    # END SOLUTION


def balanced(costs: list[int], most: int) -> list[list[int]]:
    """Open task: at most `most` lanes whose longest ends as early as possible.

    Here each piece goes, in the order of arrival, to the lane that ends first. Do better.
    """
    found: list[list[int]] = [[] for _ in range(most)]
    ends = [0] * most
    for piece in range(len(costs)):
        number = ends.index(min(ends))
        found[number].append(piece)
        ends[number] += costs[piece]
    return found
