"""The dialect of a server of which we know nothing but that it speaks OpenAI's `/v1`.

It shows no metrics and no health page. Whether it serves is told by its list of models; that list answers on a server
whose engine hangs, so beyond that only a question tells more. A server that wants a key for the list (401, 403) serves
as well: it would be wrong to take a key that we lack for a server that never starts.
"""

from __future__ import annotations

from factory_watchdog.engines.dialect import MODELS_PATH, Dialect

LISTED = frozenset({200, 401, 403})
"""Statuses of the list of models that only a server gives which answers requests."""

OPENAI = Dialect(kind="openai", health_path=MODELS_PATH, serving=LISTED, metrics_path=None)
