"""`python -m minifuse` is `minifuse`."""

import sys

from minifuse.cli import main

if __name__ == "__main__":
    sys.exit(main())
