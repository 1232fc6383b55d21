"""A sequence keeps the row that it got first."""

import reference
from reference import *


class Window(reference.Window):
    def move(self, name, row):
        pass
