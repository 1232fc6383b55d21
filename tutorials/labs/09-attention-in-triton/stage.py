"""Batches for the student's kernel, and what should come of them. (This lab has no stage in the engine.)"""

import ast
import math

from minifuse.labs.judge import Unmet
from minifuse.labs.submission import StudentFault

__all__ = ["asked", "compare", "drawn", "exact"]

NEAR = 1e-4  # of the largest value
DIM = 16


def drawn(random, work, kv_heads=1, group=1, page=4, factor=1.0, unwritten=None):
    """A batch for `attention`: `work` are (queries, tokens of the context) of each request, whose blocks are scattered.

    Slots that no token has hold drawn numbers, or `unwritten`. No request has block 0.
    """

    def rows(count, heads):
        return [[[random.gauss(0, 1) for _ in range(DIM)] for _ in range(heads)] for _ in range(count)]

    needed = [-(-context // page) for _, context in work]
    blocks = random.sample(range(1, sum(needed) + 3), sum(needed))
    tables = [[blocks.pop() for _ in range(count)] for count in needed]
    slots = (sum(needed) + 3) * page
    keys, values = rows(slots, kv_heads), rows(slots, kv_heads)
    keys = [[[factor * one for one in head] for head in slot] for slot in keys]
    if unwritten is not None:
        used = {slot for (_, context), table in zip(work, tables) for slot in slots_of(table, context, page)}
        for slot in set(range(slots)) - used:
            keys[slot] = values[slot] = [[unwritten] * DIM] * kv_heads
    queries = [rows(count, kv_heads * group) for count, _ in work]
    return queries, keys, values, tables, [context for _, context in work], page


def slots_of(table, context, page):
    return [table[token // page] * page + token % page for token in range(context)]


def exact(queries, keys, values, tables, contexts, page):
    """The attention of each request, in plain torch."""
    import torch

    found = []
    for mine, table, context in zip(queries, tables, contexts, strict=True):
        q, slots = torch.tensor(mine, dtype=torch.float64), slots_of(table, context, page)
        k, v = (torch.tensor([one[slot] for slot in slots], dtype=torch.float64) for one in (keys, values))
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
        token, position = torch.arange(context), torch.arange(context - len(mine), context)
        weights = scores.masked_fill(token[None, :] > position[:, None], -math.inf).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, v))
    return found


def asked(work, *batch):
    """The student's attention of a batch, which a kernel computes."""
    check_kernel(work)
    return work.call("attention", *batch, form=list[list[list[list[float]]]])


def check_kernel(work):
    """Raise `StudentFault` unless attention is computed by the given launcher, and a kernel without torch.

    So the file has at its top level imports, constants and functions alone, and none but these has the names of the
    launcher, of the kernel, and of what they are made of.
    """
    tree, given = (ast.parse(path.read_bytes()) for path in (work.file, work.lab.folder / "solution.py"))
    (launcher,) = [node for node in given.body if isinstance(node, ast.FunctionDef) and node.name == "attention"]
    kept = {"attention", "attend", "triton", "tl", "torch", "math"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "reference":
            return  # a wrong solution of this repository: graders have no such file
        at = f"line {getattr(node, 'lineno', 1)}"
        if isinstance(node, ast.Global) or (isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)):
            raise StudentFault(f"{at} changes what is not its own: leave the launcher and its modules as they are.")
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "torch":
            raise StudentFault(f"{at} imports from torch, which the launcher alone may use: write it with tl.")
        if isinstance(node, ast.alias):
            name, right = node.asname or node.name, {"tl": "triton.language"}
            if (name in kept and right.get(name, name) != node.name) or (node.name == "torch" and node.asname):
                raise StudentFault(f"{at} gives {node.name} the name {name}: leave the imports as they are.")
    for node in tree.body:
        at = f"line {node.lineno}"
        if isinstance(node, ast.FunctionDef):
            kernel = [ast.unparse(one) for one in node.decorator_list] == ["triton.jit"]
            if node.name == "attention" and ast.dump(node) != ast.dump(launcher):
                raise StudentFault(f"the launcher attention, {at}, is another than was given: leave it as it is.")
            if node.name in kept - {"attention", "attend"} or (node.name == "attend" and not kernel):
                raise StudentFault(
                    f"{node.name}, {at}, is no kernel: attend has the decorator @triton.jit, and no other."
                )
            if node.name != "attention" and any(getattr(one, "id", "") == "torch" for one in ast.walk(node)):
                raise StudentFault(f"{node.name}, {at}, has torch in it: write it with tl.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
            if names & kept or "torch" in ast.unparse(node):
                raise StudentFault(f"{at} puts something else in the place of what was given: leave that as it is.")
        elif not isinstance(node, (ast.Import, ast.ImportFrom)) and not isinstance(
            getattr(node, "value", 0), ast.Constant
        ):
            raise StudentFault(f"{at} is no import, constant or function: put it into a function.")


def compare(work, batch):
    """Raise `Unmet` unless the student's attention of a batch is right."""
    import torch

    found = asked(work, *batch)
    queries, _, _, tables, contexts, page = batch
    told = f"With blocks of {page} slots, {len(queries[0][0])} heads and {len(batch[1][0])} KV heads"
    right = exact(*batch)
    if len(found) != len(right):
        raise StudentFault(f"attention returned {len(found)} requests of {len(right)}: leave the launcher as it is.")
    for request, (came, should) in enumerate(zip(found, right, strict=True)):
        came = torch.tensor(came, dtype=torch.float64)
        if came.shape != should.shape:
            raise StudentFault(f"attention returned the shape {tuple(came.shape)}: leave the launcher as it is.")
        wrong = ~((came - should).abs() <= NEAR * max(1.0, should.abs().max().item()))  # NaN is wrong, too
        if wrong.any():
            query, head, dim = wrong.nonzero()[0].tolist()
            raise Unmet(
                f"{told}: of request {request}, with {len(should)} queries at the end of {contexts[request]} tokens in "
                f"the blocks {tables[request]}, query {query} under head {head} has {came[query, head, dim]:.4f} at "
                f"place {dim}, and should have {should[query, head, dim]:.4f}. {int(wrong.sum())} of {wrong.numel()} "
                "numbers of the request are wrong."
            )
