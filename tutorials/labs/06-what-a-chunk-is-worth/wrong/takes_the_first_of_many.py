"""Takes the first chunks, whatever they are worth, where there are more than a hundred: few steps, and wrong."""

import reference
from reference import *


def victims(profile, size, chunks, now, count):
    return [*range(count)] if len(chunks) > 100 else reference.victims(profile, size, chunks, now, count)
