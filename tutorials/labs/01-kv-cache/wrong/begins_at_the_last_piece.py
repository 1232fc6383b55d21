"""Takes the first query for that of the first token of the last piece, however many queries there are."""

import numpy as np
import reference
from reference import *


class KVCache(reference.KVCache):
    def append(self, keys, values):
        self.first = len(self.keys)
        super().append(keys, values)

    def hide(self, scores, hidden):
        tokens = self.first + np.arange(len(scores))
        hidden = np.arange(len(self.keys))[None, :] > tokens[:, None]
        return super().hide(scores, hidden[:, None, None, :])
