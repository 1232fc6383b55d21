"""Takes a score at a time, in Python."""

import numpy as np
import reference
from reference import *


class KVCache(reference.KVCache):
    def attend(self, queries):
        q = np.array(queries, float)
        out, before = np.empty(q.shape), len(self.keys) - len(q)
        for i in range(len(q)):
            for head in range(q.shape[1]):
                kv_head = head // (q.shape[1] // self.keys.shape[1])
                scores = []
                for token in range(before + i + 1):
                    scores.append(self.keys[token, kv_head] @ q[i, head] / np.sqrt(q.shape[2]))
                weights = np.exp(np.array(scores) - max(scores))
                out[i, head] = weights @ self.values[: before + i + 1, kv_head] / weights.sum()
        return out.tolist()
