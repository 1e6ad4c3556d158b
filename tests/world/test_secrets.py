"""Keys from files: which files are taken, and that no message shows what is in them."""

import os
import socket
from pathlib import Path

import pytest

from factory_watchdog.world.secrets import LONGEST_KEY, SecretError, read_secret

KEY = "sk-very-secret"


def key_file(folder: Path, content: bytes = KEY.encode(), mode: int = 0o640) -> Path:
    path = folder / "key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("content", [b"sk-very-secret", b"sk-very-secret\n", b"  sk-very-secret\r\n\r\n"])
@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_a_key_is_read_without_the_space_around_it(tmp_path: Path, content: bytes, mode: int) -> None:
    assert read_secret(str(key_file(tmp_path, content, mode))) == KEY


def test_a_link_to_a_key_is_followed(tmp_path: Path) -> None:
    """Kubernetes and systemd credentials are links."""
    link = tmp_path / "link"
    link.symlink_to(key_file(tmp_path))
    assert read_secret(str(link)) == KEY


def test_the_longest_key_is_taken(tmp_path: Path) -> None:
    assert read_secret(str(key_file(tmp_path, b"k" * LONGEST_KEY))) == "k" * LONGEST_KEY


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"sk-very-secret", 0o644, "others can read it; chmod o-r"),
        (b"sk-very-secret", 0o604, "others can read it; chmod o-r"),
        (b"", 0o600, "empty"),
        (b" \n\n", 0o600, "empty"),
        (b"sk-very-secret and more", 0o600, "more than one word, or characters that no key has"),
        (b"sk-very-secret\nsecond line", 0o600, "more than one word, or characters that no key has"),
        (b"sk-very-secret\r\nX-Header: injected", 0o600, "more than one word, or characters that no key has"),
        (b"sk-very-secret\0", 0o600, "more than one word, or characters that no key has"),
        (b"\xef\xbb\xbfsk-very-secret", 0o600, "more than one word, or characters that no key has"),
        ("sk-very-secret-ä".encode(), 0o600, "more than one word, or characters that no key has"),
        (b"sk-very-secret" * 1000, 0o600, f"larger than {LONGEST_KEY} bytes, so not a key"),
    ],
)
def test_what_is_no_key_is_told_without_being_shown(tmp_path: Path, content: bytes, mode: int, says: str) -> None:
    path = key_file(tmp_path, content, mode)
    with pytest.raises(SecretError) as caught:
        read_secret(str(path))
    assert str(caught.value) == f"api_key_file {path}: {says}"
    assert KEY not in str(caught.value)


def test_what_is_no_file_is_told_and_never_waited_for(tmp_path: Path) -> None:
    fifo, listening = tmp_path / "fifo", tmp_path / "socket"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        for path, says in {
            tmp_path / "missing": "No such file or directory",
            tmp_path: "not a regular file",
            fifo: "not a regular file",
            listening: "No such device or address",
            Path("/dev/zero"): "not a regular file",
        }.items():
            with pytest.raises(SecretError) as caught:
                read_secret(str(path))
            assert str(caught.value) == f"api_key_file {path}: {says}"


def test_a_key_that_we_may_not_read(tmp_path: Path) -> None:
    path = key_file(tmp_path, mode=0o000)
    if os.geteuid() == 0:  # root may read everything: be somebody else
        os.chown(path, 0, 0)
        tmp_path.chmod(0o755)
        pid = os.fork()
        if pid == 0:
            os._exit(_denied_as_nobody(path))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return
    with pytest.raises(SecretError, match="Permission denied"):
        read_secret(str(path))


def _denied_as_nobody(path: Path) -> int:
    os.setgid(65534)
    os.setuid(65534)
    try:
        read_secret(str(path))
    except SecretError as error:
        return 0 if "Permission denied" in str(error) else 1
    return 1
