"""The dialect of a proxy: LiteLLM, vllm-router, llama-swap, or an nginx in front of several servers.

Only its list of models is ever fetched. Its health page may send a chat to every server behind it (LiteLLM), its
metrics are its own or each time another server's, and a question reaches any one of them, or loads a model that nobody
asked for (llama-swap). So it is never asked, and nothing that it shows says which server hangs: never restarted.
"""

from __future__ import annotations

from factory_watchdog.engines.dialect import MODELS_PATH, Dialect
from factory_watchdog.engines.openai import LISTED

PROXY = Dialect(
    kind="proxy",
    health_path=MODELS_PATH,
    serving=LISTED,
    metrics_path=None,
    forms=(),
    restartable=False,
    silent_after=None,  # one silent server behind it silences every second request
)
