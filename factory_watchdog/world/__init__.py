"""Everything that touches the outside, one file each."""

from __future__ import annotations

import sys
from typing import Any, cast

# Where rich and click happen to be installed, httpx imports its own command line with them: half of its import time.
cast("dict[str, Any]", sys.modules).setdefault("httpx._main", None)
