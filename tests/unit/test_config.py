"""Configuration: what is read, what a setting is by default, and the exact words for everything that is wrong."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from factory_watchdog.config import load, schema
from factory_watchdog.config.kinds import Budget
from factory_watchdog.config.schema import SETTINGS, Backend, Config, Daemon
from factory_watchdog.core.model import Alert, Form, Settings
from factory_watchdog.engines.dialect import Dialect
from factory_watchdog.engines.llamacpp import LLAMACPP
from factory_watchdog.engines.proxy import PROXY
from factory_watchdog.engines.vllm import VLLM
from factory_watchdog.errors import ConfigError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "config.example.toml"
BAD = sorted((ROOT / "tests/golden/config").glob("*.toml"))
SPARK1 = '[[backend]]\nname = "spark1"\nurl = "http://127.0.0.1:8000"\n'


def read(folder: Path, text: str) -> Config:
    path = folder / "config.toml"
    path.write_text(text)
    return load.load(path)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_says_what_is_wrong(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with pytest.raises(ConfigError) as caught:
        load.load(Path(path.name))
    assert f"{caught.value}\n" == path.with_suffix(".txt").read_text()


def test_no_secret_is_told() -> None:
    told = (ROOT / "tests/golden/config/secret-in-the-file.txt").read_text()
    assert "sk-very" not in told
    assert "hunter2" not in told


def test_the_example_has_every_setting_with_its_default() -> None:
    tables = tomllib.loads(EXAMPLE.read_text())
    written = {
        "daemon": tables["daemon"],
        "backend": tables["defaults"] | tables["backend"][0],
        "notify": tables["notify"][0],
    }
    for table, settings in SETTINGS.items():
        assert set(written[table]) == set(settings)
        for name, setting in settings.items():
            assert setting.default in (None, written[table][name]), name


def test_the_example_explains_every_setting() -> None:
    text = EXAMPLE.read_text()
    for settings in SETTINGS.values():
        for name, setting in settings.items():
            beside = re.search(rf"^{name} = .* # {re.escape(setting.about)}$", text, re.MULTILINE)
            assert beside or f"# {setting.about}\n{name} = [\n" in text, name


def test_the_example_is_right() -> None:
    config = load.load(EXAMPLE)
    assert config.daemon == Daemon()
    assert config.backends == (Backend("spark1", "http://127.0.0.1:8000"),)
    assert config.notify[0].command == ("/usr/local/bin/page-me",)
    assert config.notify[0].events == set(Alert)
    assert config.warnings == ()


def test_defaults_are_those_of_the_rules() -> None:
    backend = Backend("spark1", "http://127.0.0.1:8000", unit="vllm.service")
    assert schema.settings(backend, Daemon(), VLLM) == Settings()


def test_a_backend_overrides_the_defaults(tmp_path: Path) -> None:
    text = '[defaults]\nhang_after = "3m"\nunit = "vllm.service"\n' + SPARK1 + 'unit = ""\nhang_after = "8m30s"\n'
    backend = read(tmp_path, text + SPARK1.replace("spark1", "spark2")).backends
    assert (backend[0].hang_after, backend[0].unit) == (510.0, None)
    assert (backend[1].hang_after, backend[1].unit) == (180.0, "vllm.service")


READ: list[tuple[str, str, Any]] = [
    ("silent_after", '"never"', None),
    ("silent_after", '"20m"', 1200.0),
    ("revive", "false", False),
    ("max_restarts", '"5 per 1d"', Budget(5, 86400.0)),
    ("max_restarts", '"1 per 10m"', Budget(1, 600.0)),
    ("unit", '"vllm@spark1.service"', "vllm@spark1.service"),
    ("unit", r'"vllm\\x2dmain.service"', r"vllm\x2dmain.service"),
    ("metrics_url", '"http://127.0.0.1:9000/metrics/"', "http://127.0.0.1:9000/metrics"),
    ("first_outcome", '"0s"', 0.0),
    ("model", '"meta-llama/Llama-3.1-8B"', "meta-llama/Llama-3.1-8B"),
]


@pytest.mark.parametrize(("key", "text", "value"), READ)
def test_reads(tmp_path: Path, key: str, text: str, value: object) -> None:
    backend = read(tmp_path, f"{SPARK1}{key} = {text}\n").backends[0]
    assert getattr(backend, key) == value


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("https://llm.example.org/spark1/", "https://llm.example.org/spark1"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses_have_no_slash_at_their_end(written: str, url: str) -> None:
    backend = load.from_table({"url": written})
    assert backend.url == url
    assert schema.metrics_url(backend) == f"{url}/metrics"
    assert schema.health_url(backend) == f"{url}/health"


@pytest.mark.parametrize(
    ("question", "forms"),
    [
        ("auto", tuple(Form)),
        ("chat", (Form.CHAT, Form.CHAT_COMPLETION_TOKENS)),
        ("completion", (Form.COMPLETION,)),
        ("embedding", (Form.EMBEDDING,)),
        ("never", ()),
    ],
)
def test_question_chooses_the_forms(question: str, forms: tuple[Form, ...]) -> None:
    assert schema.settings(load.from_table({"question": question}), Daemon(), VLLM).forms == forms


@pytest.mark.parametrize(
    ("table", "has_unit"),
    [
        ({"unit": ""}, False),
        ({"unit": "a.service"}, True),
        ({"unit": "", "action_unit": "a.service"}, True),
        ({}, True),
    ],
)
def test_a_unit_or_an_action_unit_makes_a_restart_possible(table: dict[str, str], has_unit: bool) -> None:
    assert schema.settings(load.from_table(table), Daemon(), VLLM).has_unit is has_unit


@pytest.mark.parametrize(
    ("table", "dialect", "silent_after", "slow"),
    [
        ({}, VLLM, 600.0, False),
        ({}, LLAMACPP, None, True),
        ({"silent_after": "5m", "host_evidence": "record"}, LLAMACPP, 300.0, False),
        ({"silent_after": "never", "host_evidence": "slow"}, VLLM, None, True),
    ],
)
def test_what_is_left_to_the_kind(
    table: dict[str, str], dialect: Dialect, silent_after: float | None, slow: bool
) -> None:
    settings = schema.settings(load.from_table(table), Daemon(), dialect)
    assert (settings.silent_after, settings.slow_evidence) == (silent_after, slow)


def test_a_proxy_is_never_asked_and_never_restarted() -> None:
    settings = schema.settings(load.from_table({"unit": "proxy.service"}), Daemon(), PROXY)
    assert (settings.forms, settings.has_unit) == ((), False)


def test_the_busy_flag_is_below_the_runtime_dir_unless_told() -> None:
    daemon = Daemon(runtime_dir="/run/other")
    assert schema.busy_flag(load.from_table({"name": "spark1"}), daemon) == Path("/run/other/flags/spark1.busy")
    assert schema.busy_flag(load.from_table({"busy_flag": "/srv/job.lock"}), daemon) == Path("/srv/job.lock")


def test_warns_of_what_is_probably_not_meant(tmp_path: Path) -> None:
    text = '[defaults]\nunit = "vllm.service"\napi_key_file = "/etc/key"\n' + SPARK1
    text += '[[backend]]\nname = "spark2"\nurl = "http://10.0.0.2:8000"\n'
    assert read(tmp_path, text).warnings == (
        "spark1, spark2: have the same unit vllm.service",
        "spark2: the API key goes unencrypted to 10.0.0.2",
    )


def test_a_table_is_read_as_the_file_is() -> None:
    assert load.from_table({}) == Backend("sim", "http://sim.invalid", unit="sim.service")
    with pytest.raises(ConfigError) as caught:
        load.from_table({"hang_afer": "90s", "hang_after": 90}, file="hang.toml: [backend]")
    assert str(caught.value) == (
        'hang.toml: [backend]: hang_afer = "90s": unknown setting; did you mean hang_after?\n'
        'hang.toml: [backend]: hang_after = 90: must be a duration from "10s" to "1h" or "auto"'
    )


def test_words_of_a_command_line_become_values() -> None:
    backend = load.from_table({"revive": "true", "hang_after": "90s", "unit": "a.service"}, words=True)
    assert (backend.revive, backend.hang_after) == (True, 90.0)
    with pytest.raises(ConfigError, match="must be true or false"):
        load.from_table({"revive": "true"})


def test_combinations_are_checked_in_a_table_too() -> None:
    with pytest.raises(ConfigError, match="needs unit"):
        load.from_table({"unit": "", "revive": True})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"a = " + b"[" * 100_000, "is not valid TOML: nested too deeply"),
        (b"#" * ((1 << 20) + 1), "is larger than 1048576 bytes"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load.load(path)


def test_a_message_stays_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SPARK1 + '"a\\nb" = "c\\nd\\u001b[31m"\n')
    assert str(caught.value).count("\n") == 0
    assert "\x1b" not in str(caught.value)


def test_every_setting_is_a_field_and_explained() -> None:
    for settings in SETTINGS.values():
        for setting in settings.values():
            assert setting.about
            assert len(setting.about) <= 80
    assert list(SETTINGS["backend"]) == [field.name for field in dataclasses.fields(Backend)]
