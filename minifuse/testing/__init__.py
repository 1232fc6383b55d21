"""The conformance kit: the laws of stages as property tests (needs the `test` extra).

Check a stage of your own against all laws with

    from minifuse.testing import check_laws
    import my_stage                                  # registers it

    def test_my_stage():
        check_laws(batching="mine")                  # with every memory and attention that fit

Each law is a function in `minifuse.testing.laws` that raises `LawBroken`; the error's `law` is the law's name.
Register a law of your own with `law`. For a memory of your own, use `count_slots` to register how many slots a request
takes.
"""

from minifuse.testing.capacity import can_serve, count_slots
from minifuse.testing.graphs import GRAPHS
from minifuse.testing.laws import LAWS, SUBJECTS, laws_of
from minifuse.testing.observation import Observation
from minifuse.testing.observed import observe
from minifuse.testing.own_laws import law
from minifuse.testing.search import check_laws, put_through
from minifuse.testing.subject import Case, Subject
from minifuse.testing.texts import TEXTS

__all__ = [
    "GRAPHS",
    "LAWS",
    "SUBJECTS",
    "TEXTS",
    "Case",
    "Observation",
    "Subject",
    "can_serve",
    "check_laws",
    "count_slots",
    "law",
    "laws_of",
    "observe",
    "put_through",
]
