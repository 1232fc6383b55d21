"""Interpolates what was measured, although a longer context may have taken less time."""

from reference import *


def cost(profile, context):
    contexts, attention = profile["contexts"], profile["attention"]
    if context <= contexts[0]:
        return profile["other"] + attention[0]
    i = next((i for i, at in enumerate(contexts) if at >= context), len(contexts) - 1)
    part = (context - contexts[i - 1]) / (contexts[i] - contexts[i - 1])
    return profile["other"] + attention[i - 1] + part * (attention[i] - attention[i - 1])
