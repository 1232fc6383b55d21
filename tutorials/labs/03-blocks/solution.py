"""Lab 3: KV in blocks. Block tables, sharing of equal beginnings, and copy on write.

Blocks are numbered from 0, and have `block_size` slots each. Token t of a text lies in block `table[t // block_size]`,
in its slot `t % block_size`. All methods get and return plain data.
"""


class Blocks:
    """The books of a memory of blocks: who has which, and what is written in them.

    >>> blocks = Blocks(4, 4)
    >>> blocks.admit("a", [7, 7, 7, 8, 8, 8])
    0
    >>> blocks.write("a", 0, 6)
    []
    >>> blocks.wrote("a", 6)
    >>> blocks.admit("b", [7, 7, 7, 8, 8, 9, 9])  # the first five tokens are the same
    5
    >>> len(blocks.write("b", 5, 7))  # b writes its sixth token into the second block, which a has, too
    1
    >>> blocks.table("a")[0] == blocks.table("b")[0], blocks.table("a")[1] == blocks.table("b")[1]
    (True, False)
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """All blocks are free."""
        # BEGIN SOLUTION: what do you have to know of each block, and of each request?
        self.size = block_size
        self.free = list(range(num_blocks))
        self.holders = [0] * num_blocks
        self.tables, self.texts, self.written = {}, {}, {}
        # END SOLUTION

    def shared(self, tokens: list[int]) -> int:
        """How many leading tokens a request with this text would share: the longest beginning that it has in common
        with what some admitted request has written. Never its last token. Changes nothing."""
        # BEGIN SOLUTION: with whom does it share the longest beginning?
        return self._parent(tokens)[1]
        # END SOLUTION

    def admit(self, name: str, tokens: list[int]) -> int:
        """Give a request a table with the blocks of what it shares, the last of which may be shared in part. Takes no
        free block. Returns how many tokens it shares: these count as written."""
        # BEGIN SOLUTION: whose blocks does its table begin with, and who counts their holders?
        parent, common = self._parent(tokens)
        table = self.tables[parent][: -(-common // self.size)] if common else []
        for block in table:
            self.holders[block] += 1
        self.tables[name], self.texts[name], self.written[name] = [*table], [*tokens], common
        return common
        # END SOLUTION

    def write(self, name: str, start: int, stop: int) -> list[tuple[int, int]] | None:
        """Provide for the KV of tokens [start, stop), which are written next; those before `start` are written.

        The table gets as many blocks as `stop` tokens take, and none of the blocks to be written is in another table.
        Takes no more free blocks than that needs.

        Returns:
            The blocks to copy before anything is written, as (from, to). Or None if too few blocks are free: then
            nothing has changed.
        """
        # BEGIN SOLUTION: which block is written first, who has it, and how many are needed behind it?
        table, first = self.tables[name], start // self.size
        more = max(0, -(-stop // self.size) - len(table))
        copied = self._is_copied(table, start)
        if more + copied > len(self.free):
            return None
        copies = []
        if copied:
            source, table[first] = table[first], self._take()
            self._give_back(source)
            copies.append((source, table[first]))
        table += [self._take() for _ in range(more)]
        return copies
        # END SOLUTION

    def wrote(self, name: str, stop: int) -> None:
        """The KV of the tokens before `stop` is written now, and may be shared."""
        # BEGIN SOLUTION: what do newcomers look at?
        self.written[name] = stop
        # END SOLUTION

    def table(self, name: str) -> list[int]:
        """The block table of an admitted request."""
        # BEGIN SOLUTION: which blocks has it, in the order of its text?
        return self.tables[name]
        # END SOLUTION

    def release(self, name: str) -> None:
        """Forget a request that has ended or is evicted. A name that was evicted may be admitted again."""
        # BEGIN SOLUTION: which of its blocks are free now?
        for block in self.tables.pop(name):
            self._give_back(block)
        del self.texts[name], self.written[name]
        # END SOLUTION

    # BEGIN SOLUTION
    def _parent(self, tokens):
        """Who has the longest beginning of these tokens, and its length."""
        best, most = None, 0
        for name, text in self.texts.items():
            stop = min(len(text), self.written[name], len(tokens) - 1)
            common = 0
            while common < stop and text[common] == tokens[common]:
                common += 1
            if common > most:
                best, most = name, common
        return best, most

    def _is_copied(self, table, start):
        """Whether the block that token `start` is written to holds others, and is in another table."""
        first = start // self.size
        return start % self.size > 0 and first < len(table) and self.holders[table[first]] > 1

    def _take(self):
        block = self.free.pop()
        self.holders[block] = 1
        return block

    def _give_back(self, block):
        self.holders[block] -= 1
        if not self.holders[block]:
            self.free.append(block)

    # END SOLUTION


def victims(running: list[dict]) -> list[str]:
    """Open task: the names of these requests, in the order in which they are evicted when memory runs out.

    Evicted requests lose their KV, and compute their prompt and answer again when they come back. As many are evicted
    as are needed, from the first of the list on. This is the order of chapter 4: the newest first. Lose less.

    Args:
        running: those that may be evicted, in the order of arrival: {"name", "prompt", "answer", "most", "blocks"}, the
            tokens of its prompt and of its answer so far, the tokens that the answer has in the end, and its blocks.
    """
    return [one["name"] for one in reversed(running)]
