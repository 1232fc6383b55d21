"""The kernels in Triton's interpreter: tests/kernels/test_interpreter.py runs each of these files in a process of its
own with TRITON_INTERPRET=1, which must be set before a kernel is imported.
"""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
