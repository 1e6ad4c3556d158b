"""The selective reader against tables of lines, against prometheus_client's parser as its oracle, against anything."""

import gzip
import math
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from factory_watchdog.engines import exposition
from factory_watchdog.engines.exposition import Series

PAGES = sorted(pathlib.Path(__file__).parent.parent.joinpath("data").glob("*/*.txt.gz"))

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WANTED = frozenset({RUNNING, WAITING, "process_start_time_seconds"})


def read_one(line: bytes) -> list[Series] | None:
    return exposition.read(line, WANTED).get(RUNNING)


def oracle(text: str, wanted: frozenset[str]) -> dict[str, list[Series]]:
    """What prometheus_client's parser makes of the page, NaN left out."""
    told: dict[str, list[Series]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in wanted and not math.isnan(sample.value):
                told.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    return told


# --- lines -----------------------------------------------------------------------------------------------------------

GOOD: dict[str, tuple[bytes, dict[str, str], float]] = {
    "plain": (b"vllm:num_requests_running 4\n", {}, 4.0),
    "no newline at the end": (b"vllm:num_requests_running 4.0", {}, 4.0),
    "carriage return": (b'vllm:num_requests_running{engine="0"} 4.0\r\n', {"engine": "0"}, 4.0),
    "labels": (b'vllm:num_requests_running{engine="0",model_name="m"} 4', {"engine": "0", "model_name": "m"}, 4.0),
    "no labels in braces": (b"vllm:num_requests_running{} 4", {}, 4.0),
    "comma at the end": (b'vllm:num_requests_running{engine="0",} 4', {"engine": "0"}, 4.0),
    "empty value": (b'vllm:num_requests_running{engine=""} 4', {"engine": ""}, 4.0),
    "timestamp": (b'vllm:num_requests_running{engine="0"} 4 1795812345678', {"engine": "0"}, 4.0),
    "timestamp before 1970": (b"vllm:num_requests_running 4 -1", {}, 4.0),
    "tabs": (b'\tvllm:num_requests_running\t{\tengine\t=\t"0"\t,\ta="b"\t}\t4\t1\t', {"engine": "0", "a": "b"}, 4.0),
    "blanks": (b'  vllm:num_requests_running  { engine = "0" , a = "b" }  4  1  ', {"engine": "0", "a": "b"}, 4.0),
    "no blank before the number": (b'vllm:num_requests_running{engine="0"}4', {"engine": "0"}, 4.0),
    "quote": (rb'vllm:num_requests_running{m="a\"b"} 4', {"m": 'a"b'}, 4.0),
    "backslash": (rb'vllm:num_requests_running{m="a\\"} 4', {"m": "a\\"}, 4.0),
    "backslash and n": (rb'vllm:num_requests_running{m="a\\n"} 4', {"m": "a\\n"}, 4.0),
    "newline": (rb'vllm:num_requests_running{m="a\nb"} 4', {"m": "a\nb"}, 4.0),
    "unknown escape": (rb'vllm:num_requests_running{m="a\tb"} 4', {"m": r"a\tb"}, 4.0),
    "comma, brace, equals": (
        b'vllm:num_requests_running{m="a,b} 9 {c=d",e="0"} 4',
        {"m": "a,b} 9 {c=d", "e": "0"},
        4.0,
    ),
    "hash": (b'vllm:num_requests_running{m="a # b"} 4', {"m": "a # b"}, 4.0),
    "line separator": ('vllm:num_requests_running{m="a\u2028b\u0085"} 4'.encode(), {"m": "a\u2028b\u0085"}, 4.0),
    "carriage return in a value": (b'vllm:num_requests_running{m="a\rb"} 4', {"m": "a\rb"}, 4.0),
    "a wanted name in a value": (
        rb'vllm:num_requests_running{m="\nvllm:num_requests_running{} 7"} 4',
        {"m": "\nvllm:num_requests_running{} 7"},
        4.0,
    ),
    "exponent": (b"vllm:num_requests_running 1.79607166654e+09", {}, 1796071666.54),
    "infinite": (b"vllm:num_requests_running +Inf", {}, math.inf),
    "infinite without a sign": (b"vllm:num_requests_running Inf", {}, math.inf),
    "infinite downwards": (b"vllm:num_requests_running -Inf", {}, -math.inf),
    "negative": (b"vllm:num_requests_running -1", {}, -1.0),
}


@pytest.mark.parametrize(("line", "labels", "value"), GOOD.values(), ids=GOOD)
def test_a_line_is_read(line: bytes, labels: dict[str, str], value: float) -> None:
    assert read_one(line) == [(labels, value)]
    assert oracle(line.decode(), WANTED) == {RUNNING: [(labels, value)]}


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    assert read_one(b'vllm:num_requests_running{m="a\xff\xfeb"} 4') == [({"m": "a\ufffd\ufffdb"}, 4.0)]


NOT_TOLD: dict[str, bytes] = {
    "empty page": b"",
    "newlines": b"\n\n\r\n",
    "nan": b"vllm:num_requests_running NaN",
    "nan of another case": b"vllm:num_requests_running nan",
    "no number": b"vllm:num_requests_running",
    "no number but a blank": b"vllm:num_requests_running ",
    "no number after the labels": b'vllm:num_requests_running{engine="0"}',
    "words": b"vllm:num_requests_running four",
    "hexadecimal": b"vllm:num_requests_running 0x10",
    "Python's underscore": b"vllm:num_requests_running 1_000",
    "two numbers and a word": b"vllm:num_requests_running 4 5 x",
    "three numbers": b"vllm:num_requests_running 4 5 6",
    "a word for a timestamp": b"vllm:num_requests_running 4 now",
    "a form feed in the number": b"vllm:num_requests_running 4\x0c",
    "labels without end": b'vllm:num_requests_running{engine="0" 4',
    "value without end": b'vllm:num_requests_running{engine="0} 4',
    "value without quotes": b"vllm:num_requests_running{engine=0} 4",
    "label without value": b"vllm:num_requests_running{engine} 4",
    "label without name": b'vllm:num_requests_running{="0"} 4',
    "label whose name is a number": b'vllm:num_requests_running{0="0"} 4',
    "no comma": b'vllm:num_requests_running{a="0" b="1"} 4',
    "two commas": b'vllm:num_requests_running{a="0",,b="1"} 4',
    "comma alone": b"vllm:num_requests_running{,} 4",
    "cut in the middle": b'vllm:num_requests_running{engine="0",model_na',
    "a digit of no end": b"vllm:num_requests_running " + b"9" * 1_000_000,
    "longer name": b"vllm:num_requests_running_by_reason 4",
    "longer name with labels": b'vllm:num_requests_running_by_reason{reason="capacity"} 4',
    "name with something before it": b"xvllm:num_requests_running 4",
    "name without its namespace": b"num_requests_running 4",
    "another case": b"VLLM:num_requests_running 4",
    "help": b"# HELP vllm:num_requests_running 4",
    "type": b"# TYPE vllm:num_requests_running gauge",
    "comment": b"#vllm:num_requests_running 4",
    "name in a value": b'other{m="vllm:num_requests_running 4"} 1',
    "name at the beginning of an escaped line in a value": rb'other{m="\nvllm:num_requests_running 4"} 1',
    "name after a lone carriage return": b"other 1\rvllm:num_requests_running 4",
    "name after a line separator": "other 1\u2028vllm:num_requests_running 4".encode(),
    "zero bytes": b"vllm:num_requests_running\x00 4",
    "quote that never ends": b'vllm:num_requests_running{m="' + b'\\"' * 500_000,
    "labels that never end": b"vllm:num_requests_running{" + b'a="b",' * 200_000,
    "blanks that never end": b"vllm:num_requests_running" + b" " * 1_000_000 + b"x",
}


@pytest.mark.parametrize("page", NOT_TOLD.values(), ids=NOT_TOLD)
def test_what_is_no_series_is_absent(page: bytes) -> None:
    assert exposition.read(page, WANTED) == {}


@pytest.mark.parametrize("broken", NOT_TOLD.values(), ids=NOT_TOLD)
def test_a_broken_line_takes_no_other_with_it(broken: bytes) -> None:
    page = b"vllm:num_requests_running 1\n" + broken + b"\nvllm:num_requests_running 2\nvllm:num_requests_waiting 3\n"
    assert exposition.read(page, WANTED) == {RUNNING: [({}, 1.0), ({}, 2.0)], WAITING: [({}, 3.0)]}


def test_a_name_that_begins_another_is_told_apart_from_it() -> None:
    page = b'vllm:num_requests_waiting_by_reason{reason="capacity"} 6\nvllm:num_requests_waiting 4\n'
    assert exposition.read(page, WANTED) == {WAITING: [({}, 4.0)]}
    both = frozenset({WAITING, "vllm:num_requests_waiting_by_reason"})
    assert set(exposition.read(page, both)) == both


def test_duplicates_are_all_told_in_their_order() -> None:
    page = b"vllm:num_requests_running 1\nvllm:num_requests_running 1\nvllm:num_requests_running 0\n"
    assert read_one(page) == [({}, 1.0), ({}, 1.0), ({}, 0.0)]


def test_nothing_wanted_is_nothing_told() -> None:
    assert exposition.read(b"vllm:num_requests_running 1\n 5\n{} 5\n", frozenset()) == {}


def test_a_dot_in_a_wanted_name_is_a_dot() -> None:
    assert exposition.read(b"axb 1\n", frozenset({"a.b"})) == {}


# --- pages -----------------------------------------------------------------------------------------------------------


def lines_up_to_the_last_whole_one(path: pathlib.Path) -> str:
    """The page as text. The oracle stops at a broken line, so that one cut at its end is left out."""
    text = gzip.decompress(path.read_bytes()).decode()
    return text[: text.rindex("\n") + 1]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name.removesuffix(".txt.gz"))
def test_every_metric_of_a_recorded_page_is_read_as_the_oracle_reads_it(path: pathlib.Path) -> None:
    text = lines_up_to_the_last_whole_one(path)
    names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    expected = oracle(text, frozenset(names))
    assert len(expected) > 10
    assert exposition.read(text.encode(), frozenset(names)) == expected
    for name in names:  # each by itself as well: its search must not lean on the names of others
        assert exposition.read(text.encode(), frozenset({name})) == {name: expected[name]}


def test_there_are_recorded_pages() -> None:
    assert len(PAGES) >= 13


# --- anything --------------------------------------------------------------------------------------------------------

FRAGMENTS = [
    *(name.encode() for name in WANTED),
    *(
        b"\n",
        b"\r\n",
        b" ",
        b"\t",
        b"{",
        b"}",
        b'"',
        b"\\",
        b",",
        b"=",
        b"#",
        b"engine",
        b"4",
        b"1.5e3",
        b"NaN",
        b"+Inf",
    ),
    *(b"\xff", "\u2028".encode(), b"\x00", b"_total", b'engine="0"', b'{engine="0"} 4'),
]


@given(st.one_of(st.binary(), st.lists(st.sampled_from(FRAGMENTS), max_size=40).map(b"".join)))
def test_no_bytes_raise(page: bytes) -> None:
    for name, series in exposition.read(page, WANTED).items():
        assert name in WANTED
        assert series
        assert not any(math.isnan(value) for _, value in series)


label_values = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.floats(allow_nan=False)


@given(
    st.dictionaries(st.tuples(label_values, label_values), numbers, min_size=1, max_size=5),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_what_prometheus_client_writes_is_read_back(values: dict[tuple[str, str], float], newline: bytes) -> None:
    registry = CollectorRegistry()
    running = Gauge(RUNNING, "vllm:num_requests_running 9", ["engine", "model_name"], registry=registry)
    decoy = Counter("vllm:num_requests_running_decoy", "", ["engine", "model_name"], registry=registry)
    for (engine, model), value in values.items():
        running.labels(engine, model).set(value)
        decoy.labels(engine, model).inc()
    page = generate_latest(registry).replace(b"\n", newline)
    expected = [({"engine": engine, "model_name": model}, value) for (engine, model), value in values.items()]
    assert exposition.read(page, WANTED) == {RUNNING: expected}
