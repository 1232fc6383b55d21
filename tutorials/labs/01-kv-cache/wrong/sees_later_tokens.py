"""Hides nothing: a token of a piece attends to those behind it."""

import reference
from reference import *


class KVCache(reference.KVCache):
    def hide(self, scores, hidden):
        return scores
