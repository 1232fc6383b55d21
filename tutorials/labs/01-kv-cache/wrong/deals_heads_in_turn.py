"""Gives head h the KV head h modulo their number, where consecutive heads share one."""

import numpy as np
import reference
from reference import *


class KVCache(reference.KVCache):
    def attend(self, queries):
        q = np.array(queries, float)
        kv_heads = self.keys.shape[1]
        order = sorted(range(q.shape[1]), key=lambda head: (head % kv_heads, head))
        out = np.empty(q.shape)
        out[:, order] = super().attend(q[:, order].tolist())
        return out.tolist()
