"""Clients that ask one server for text, in parallel, over real connections. Standard library only."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import itertools
import json
import socket
import threading
import time
from typing import Self

TIMEOUT = 180.0  # seconds without a byte from the server, after which a client gives up; longer than any request here
_PAUSE = 0.5  # seconds before the next request after a failed one
_JOIN = 10.0  # seconds for a thread to notice that its connection was dropped

_number = itertools.count(1)  # makes each prompt new from its first character on, so that no prefix cache helps


@dataclasses.dataclass(frozen=True)
class Result:
    """How one request ended: its HTTP status, or the error where none came; the tokens that the server counted."""

    status: int | None
    error: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class Load:
    """`clients` threads that send one chat each, or one after the other with `repeat`, until the context ends.

    `prompt` is the length in tokens of the text (see tiny_model); `max_tokens` are always generated. Leaving the
    context drops what is still open, as clients do that hang up.
    """

    def __init__(
        self, port: int, clients: int, *, prompt: int = 40, max_tokens: int = 200, repeat: bool = False
    ) -> None:
        self.results: list[Result] = []
        self._port, self._prompt, self._max_tokens, self._repeat = port, prompt, max_tokens, repeat
        self._ended = threading.Event()
        self._open: set[http.client.HTTPConnection] = set()
        self._threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    @property
    def failed(self) -> list[Result]:
        """The requests that ended with anything but status 200."""
        return [result for result in self.results if result.status != 200]

    def join(self, timeout: float) -> None:
        """Wait for the end of all requests; AssertionError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), f"requests still open after {timeout:g} s"

    def finish(self, timeout: float) -> None:
        """Send nothing more, and wait until every request that is open has its answer."""
        self._ended.set()
        self.join(timeout)

    def hang_up(self) -> None:
        """Drop every open connection and send nothing more."""
        self._ended.set()
        for connection in list(self._open):
            with contextlib.suppress(AttributeError, OSError):  # ended by itself in this moment
                connection.sock.shutdown(socket.SHUT_RDWR)
        self.join(_JOIN)

    def _client(self) -> None:
        while not self._ended.is_set():
            result = self._request()
            if self._ended.is_set() and result.status is None:
                return  # dropped by ourselves
            self.results.append(result)
            if not self._repeat:
                return
            if result.status != 200:
                self._ended.wait(_PAUSE)

    def _request(self) -> Result:
        text = f"{next(_number)} ".ljust(self._prompt, "x")
        fields = {"messages": [{"role": "user", "content": text}], "max_tokens": self._max_tokens, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
        began = time.monotonic()
        status, error = None, ""
        usage: dict[str, int] = {}
        self._open.add(connection)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(fields), {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read()
            status = response.status
            usage = json.loads(body)["usage"] if status == 200 else {}
        except (OSError, http.client.HTTPException) as failure:
            error = repr(failure)
        finally:
            self._open.discard(connection)
            connection.close()
        seconds = time.monotonic() - began
        return Result(status, error, usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), seconds)
