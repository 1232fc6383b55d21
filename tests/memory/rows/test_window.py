"""The columns of a rectangle whose rows change hands, on the examples of Baton's sections 4.1 and 4.2."""

from __future__ import annotations

from minifuse.core.places import Runs
from minifuse.core.plan import Extent, Span
from minifuse.core.shapes import Rectangle
from minifuse.memory.rows.window import Entry, Window

RUNNING = ("query0", "query1", "query2")


def three_running(*, embed: bool = False) -> Window:
    """Three queries in columns 0 to 3: query0 began with two tokens, the others with three."""
    window = Window(3, 10, embed=embed)
    entries = [Entry("query0", 2, 2, 10), Entry("query1", 3, 3, 10), Entry("query2", 3, 3, 10)]
    assert window.enter(entries) == Span(0, 3)
    assert window.enter(()) == Span(3, 4)
    return window


def test_vector_shaping_as_in_figure_4() -> None:
    """query2 ends, and query3 of l_q = 2 tokens enters: B x l_q input tokens, a mask as long as l_am + l_q - 1."""
    window = three_running()
    window.leave("query2")
    computed = window.enter([Entry("query3", 2, 2, 6)])
    rectangle = window.rectangle(computed)
    assert rectangle.num_tokens == 3 * 2
    l_am = 5  # of columns 0 to 3, and of the token that is computed next
    assert rectangle.stop == l_am + 2 - 1
    assert window.columns["query3"] == (Span(4, 10),)  # the mask of what query2 had is 0
    assert window.columns["query0"] == (Span(1, 5), Span(6, 12))  # 0 is appended behind the token
    assert window.columns["query1"] == (Span(0, 5), Span(6, 11))
    assert window.rows == {"query0": 0, "query1": 1, "query3": 2}
    assert window.enter(()) == Span(6, 7)
    assert window.place("query1") == Runs(((10, 5), (16, 4), (10, 1)))
    assert window.place("query3") == Extent(24, 6)


def test_the_common_leading_padding_is_released() -> None:
    """min(index_i): after each row has changed hands once, what the first ones had is given back."""
    window = three_running()
    for old, new in zip(RUNNING, ("a", "b", "c"), strict=True):
        window.leave(old)
        window.enter([Entry(new, 2, 2, 4)])
    assert window.columns == {"a": (Span(4, 7), Span(8, 9)), "b": (Span(6, 9), Span(10, 11)), "c": (Span(8, 12),)}
    assert (window.begin, window.stop) == (4, 10)


def test_embedding_what_is_shorter_than_the_window() -> None:
    """l_q <= l_kv: it ends where the others end, the front of its row is padding, and no sequence has a gap."""
    window = three_running(embed=True)
    window.leave("query2")
    assert window.enter([Entry("query3", 3, 1, 6)]) == Span(4, 5)
    assert window.columns["query3"] == (Span(2, 8),)
    assert window.columns["query0"] == (Span(1, 11),)
    assert (window.begin, window.stop) == (0, 5)


def test_embedding_what_is_longer_than_the_window() -> None:
    """l_q > l_kv: columns are added on the left."""
    window = three_running(embed=True)
    window.leave("query2")
    assert window.enter([Entry("query3", 7, 1, 9)]) == Span(4, 5)
    assert (window.begin, window.stop) == (-2, 5)
    assert window.rectangle(Span(4, 5)) == Rectangle(0, 3, 10, 4, 5, begin=-2)
    assert window.place("query3") == Runs(((28, 2), (20, 7)))


def test_the_last_row_closes_up() -> None:
    window = three_running()
    window.leave("query0")
    assert window.height == 3
    assert window.place("query2") == Extent(20, 10)
    assert window.move_last() == "query2"
    assert (window.height, window.free, window.place("query2")) == (2, [2], Extent(0, 10))


def test_without_shrink_a_batch_keeps_its_columns_until_none_is_in_use() -> None:
    """a is longer by three tokens. When it has ended, a row of eight has room for its columns, and one of seven not."""
    for stride, begin in ((8, 0), (7, 3)):
        window = Window(2, stride, shrink=False)
        window.enter([Entry("a", 5, 5, 6), Entry("b", 2, 2, 5)])
        window.enter(())
        window.leave("a")
        window.enter(())
        assert (window.begin, window.stop, window.height) == (0, 7, 2)
        window.enter(())
        assert (window.begin, window.stop, window.height) == (begin, 8, 2)
        window.give_up()
        assert (window.begin, window.stop, window.height) == (3, 8, 2)
        window.leave("b")
        window.enter([Entry("c", 1, 1, 2)])
        assert (window.width, window.height) == (1, 1)


def test_without_shrink_a_batch_keeps_its_rows_until_none_is_in_use() -> None:
    window = Window(4, 10, shrink=False)
    window.enter([Entry(name, 2, 2, 4) for name in "abc"])
    window.leave("c")
    window.leave("b")
    window.enter(())
    assert (window.height, window.copy().height) == (3, 3)
    assert window.rectangle(window.enter(())).rows == 3
    window.leave("a")
    assert window.height == 0
    window.enter([Entry("d", 2, 2, 4)])
    assert window.height == 1
