"""Takes the exponentials of the scores as they are."""

import numpy as np
import reference
from reference import *


class KVCache(reference.KVCache):
    def exponentials(self, scores):
        return np.exp(scores)
