"""A hook of the site: ``:func:`forethought.plan``` in a docstring becomes plain code."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):\s*<code>(~?)((?:[\w]+\.)*)([\w]+)</code>")


def on_page_content(html: str, **_others: Any) -> str:
    """The page with every role replaced; a leading ``~`` shows the last name only."""

    def shown(match: re.Match[str]) -> str:
        short, path, name = match.groups()
        return f"<code>{name if short else path + name}</code>"

    return _ROLE.sub(shown, html)
