"""Checks that the pictures of the built site are there: python -m tools.pictures SITE.

`mkdocs build --strict` does not follow the paths in HTML.
"""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

SHOWN = re.compile(r'<(?:img|source)\b[^>]*?\s(?:src|srcset)="([^":]+)"')  # no data: or https: addresses


def missing(site: Path) -> list[str]:
    """Return each page with a picture that is not there, and the picture."""
    found = []
    for page in sorted(site.rglob("*.html")):
        for shown in SHOWN.findall(page.read_text(encoding="utf-8")):
            if not (page.parent / unquote(shown)).exists():
                found.append(f"{page.relative_to(site)}: {shown}")
    return found


if __name__ == "__main__":
    if lines := missing(Path(sys.argv[1])):
        sys.exit("\n".join(lines))
