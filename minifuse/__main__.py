"""Runs the command line as a process: `python -m minifuse` does the same as `minifuse`."""

import sys
from typing import NoReturn

from minifuse.cli import main as run_command_line
from minifuse.ctrl_c import INTERRUPTED, exit_code, finish


def main() -> NoReturn:
    """Run the command line that was typed, and end the process with its exit code."""
    try:
        code = run_command_line()
    except KeyboardInterrupt:  # after its last line and before the next one here
        code = INTERRUPTED
    code = exit_code(code)
    finish(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
