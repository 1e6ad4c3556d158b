"""Keys from files. A key is read when it is needed, and never kept, logged or shown."""

from __future__ import annotations

import os
import stat

from factory_watchdog.errors import WatchdogError

LONGEST_KEY = 4096
"""Bytes; keys are some dozens. A larger file is not a key file."""


class SecretError(WatchdogError):
    """A key file cannot be used; the text names the file and what would be right, never its content."""


def read_secret(path: str) -> str:
    """The key in a file that only its owner and group can read. Raises SecretError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecretError(f"api_key_file {path}: {error.strerror}") from None
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise SecretError(f"api_key_file {path}: not a regular file")
        if facts.st_mode & stat.S_IROTH:
            raise SecretError(f"api_key_file {path}: others can read it; chmod o-r")
        content = os.read(file, LONGEST_KEY + 1)
    except OSError as error:
        raise SecretError(f"api_key_file {path}: {error.strerror}") from None
    finally:
        os.close(file)
    return _key(path, content)


def _key(path: str, content: bytes) -> str:
    if len(content) > LONGEST_KEY:
        raise SecretError(f"api_key_file {path}: larger than {LONGEST_KEY} bytes, so not a key")
    key = content.strip()
    if not key:
        raise SecretError(f"api_key_file {path}: empty")
    if not key.isascii() or any(byte < 0x21 or byte == 0x7F for byte in key):
        raise SecretError(f"api_key_file {path}: more than one word, or characters that no key has")
    return key.decode()
