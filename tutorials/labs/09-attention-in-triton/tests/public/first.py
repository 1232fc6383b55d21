"""A case that can be done by hand, and the simplest batches."""

import ast
from math import log

from stage import compare, drawn

from minifuse.labs.judge import Unmet
from minifuse.labs.submission import StudentFault

DIM = 16


def wide(number):
    """A vector of `DIM` numbers, of which only the first is not 0."""
    return [number] + [0.0] * (DIM - 1)


def test_one_query_by_hand(work):
    """Tokens with the weights 1, 2, 4 and 1, and the values 7, 7, 0 and 3, in two blocks: (7 + 14 + 0 + 3) / 8 = 3."""
    # With 16 numbers in a head the scale is 1/4, so the query 4 makes the key its score.
    keys = [[wide(log(weight))] for weight in (4, 1, 1, 2)]  # block 1 is first: tokens 0 and 1 lie in slots 2 and 3
    values = [[wide(value)] for value in (0.0, 3.0, 7.0, 7.0)]
    found = work.call("attention", [[[wide(4.0)]]], keys, values, [[1, 0]], [4], 2, form=list[list[list[list[float]]]])
    if not abs(found[0][0][0][0] - 3) < 1e-5 or any(found[0][0][0][1:]):
        raise Unmet(f"the output is {found[0][0][0]}, and should be 3 and then zeros.")


def test_several_requests(work):
    """Three requests with one query each, over 4, 16 and 8 tokens in blocks of 4. The launcher is as it was given."""
    compare(work, drawn(work.random, [(1, 4), (1, 16), (1, 8)]))
    check_kernel(work)


def check_kernel(work):
    """Raise `StudentFault` unless the launcher is the given one, and `attend` a kernel without torch."""
    mine, given = (functions(path) for path in (work.file, work.lab.folder / "solution.py"))
    if "attention" in mine and ast.dump(mine["attention"]) != ast.dump(given["attention"]):
        raise StudentFault("the launcher attention is another than was given: leave it as it is.")
    if "attend" in mine:
        kernel = mine["attend"]
        if [ast.unparse(one) for one in kernel.decorator_list] != ["triton.jit"]:
            raise StudentFault("attend is no kernel: it is to have the decorator @triton.jit, and no other.")
        if any(isinstance(node, ast.Name) and node.id == "torch" for node in ast.walk(kernel)):
            raise StudentFault("attend has torch in it: write it with tl.")


def functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
