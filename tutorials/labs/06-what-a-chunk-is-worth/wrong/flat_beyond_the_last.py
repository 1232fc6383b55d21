"""Beyond the last measurement, that one counts."""

import reference
from reference import *


def cost(profile, context):
    return reference.cost(profile, min(context, profile["contexts"][-1]))
