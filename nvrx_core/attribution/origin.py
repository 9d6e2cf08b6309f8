"""Where a line of a log is from: rank, host, time and level, by its prefixes and by the name of its file. Pure.

Prefixes may be nested, as in `node1: [default3]:[rank11]:[E1206 18:44:12.7 ProcessGroupNCCL.cpp:607] ...`. The number
of torchrun's `[default3]:` is a local rank; every other one is taken for a global rank, and wins over it.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from nvrx_core.attribution.verdict import without_escapes
from nvrx_core.events.schema import LAUNCHER

__all__ = ["GLOG", "Line", "Origin", "of_file", "parse", "seconds_of_year"]

MAX_LINE: Final = 4_096
"""Characters of a line that are looked at."""
MAX_RECORD: Final = 1 << 16
"""Characters of a line that is a JSON object."""
MAX_PREFIXES: Final = 8
GLOG: Final = "GLOG"
"""The level of an information or a warning of C++ code, or of torchrun."""
MAX_RANK: Final = 1 << 20

_HOST: Final = r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}"
_DATE: Final = (
    r"(?:\d{4}-)?(?P<month>\d\d)-(?P<day>\d\d)[T _](?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?:Z|[+-]\d\d:?\d\d)?"
)
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_PREFIXES: Final = tuple(
    re.compile(each)
    for each in (
        r"\[(?i:rank)[ :=]{0,2}(?P<rank>\d{1,7})\]:?(?: |$)?",
        (r"\[(?P<role>[A-Za-z][A-Za-z_-]{0,40})(?P<local>\d{1,4})\]:\s?(?!\s)"
        r"|\[(?P<role2>[A-Za-z][A-Za-z_-]{0,40})(?P<local2>\d{1,4})\]:(?=\s)"),
        r"\[(?P<glog>[IWEF])(?P<mmdd>\d{3,4}) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?)[^\]]{0,120}\] ?",
        r"\[(?P<glog>[IWEF]) [\w./]{1,60}:\d+\] ?",
        r"(?P<glog>[IWEF])(?P<mmdd>\d{4}) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?) +\d+ (?:\S+ )?[^\]\s]{1,200}\] ?",
        r"[(\[]?" + _DATE + r"[)\]]?(?: ?[|:-](?= ))? ?",
        r"(?P<name>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?)"
        r" (?P<host>" + _HOST + r") [\w./@-]{1,60}(?:\[\d+\])?: ?",
        r"\[ *\d+\.\d{3,9}\] ?", r"\[ *\+\d+\.\d+\] ?",
        r"\[\d+,(?P<rank>\d{1,7})\](?:<std(?:out|err|diag)>)?: ?",
        r"\((?i:rank)[ :=]{0,2}(?P<rank>\d{1,7})\):? ?",
        r"(?i:(?:global[_ ]?)?rank)[ :=_-]{0,2}(?P<rank>\d{1,7})(?:\]|\)|:| -| \|)[: ]?",
        r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?= ) ?", r"(?P<rank>\d{1,6}):(?!\d) ?",
        r"\[(?P<weak>\d{1,4})\] (?=\S)",
        r"(?P<host>" + _HOST + r"):\d+:\d+ \[(?P<device>\d+)\] ",
        r"\[(?P<host>(?=[^\]]*[a-z])" + _HOST + r"):(?:(?P<rank>\d{1,4})|\d{5,})\]:? ?",
        r"\(\w+ pid=\d+(?:, ip=(?P<host>[\w.:-]+))?\) ?",
        r"(?P<level>INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE|NOTICE)\b(?: ?[:|-](?= )| (?=:)|:)? ?",
        r"\[(?P<level>INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL|FATAL|info|warning|error)\] ?",
        r"\[ft_launcher(?: (?P<host>" + _HOST + r") \S+)?\] ?",
        r"\[rank monitor[^\]]{0,80}\] ?",
        (r"(?P<host>(?![\w.]*(?:Error|Exception|Interrupt"
        r"|Warning)\b)(?=[A-Za-z.-]*\d)[A-Za-z][A-Za-z0-9.-]{0,252}): (?=\S|\s\s)"),
        r"[|│] ?",
    )
)  # fmt: skip
_ISO_HOST: Final = re.compile(
    r"(?P<host>(?=[A-Za-z-]*\d)[A-Za-z][A-Za-z0-9.-]{1,200}) (?:kernel|python\S*|\w+\[\d+\]): ?"
    r"|(?P<host2>(?=[A-Za-z-]*\d)[A-Za-z][A-Za-z0-9-]{1,200}) (?=\[[Rr]ank)"
)
_JSON_KEYS: Final = {
    "rank": ("rank", "global_rank", "Rank", "initial_rank"), "local": ("local_rank",),
    "host": ("host", "hostname", "node_name", "nodename"),
    "text": ("message", "msg", "log", "text", "reason", "event"), "level": ("level", "levelname", "severity"),
    "time": ("time", "timestamp", "ts", "asctime", "wall"),
    "trace": ("traceback", "exc_info", "exception", "stack_trace"),
}  # fmt: skip
_FILES: Final = (
    re.compile(r"(?:^|[/_.-])(?:global_?)?rank[_=.-]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"attempt_\d+/(?P<local>\d{1,4})/(?:std(?:out|err)|error)"),
    re.compile(r"_(?P<rank>\d{1,6})_log\.(?:err|out)$"),
    re.compile(r"(?:^|[/_.-])(?:task|proc|worker|std_?err|std_?out|err|out)"
        r"[_.-]?(?P<rank>\d{1,6})(?:\.(?:log|txt|out|err))?(?:\.gz)?$"),
)  # fmt: skip
_FILE_HOST: Final = re.compile(
    r"(?:^|[/_.-])(?P<host>(?:node|host|gpu|dgx|cn|nid|hgx|worker-)[\w-]*?\d+)(?=[/_.-]|$)", re.IGNORECASE
)
_FILE_CYCLE: Final = re.compile(r"(?:attempt|cycle)[_.-]?(?P<cycle>\d{1,6})(?!\d)")
_HOST_NAME: Final = re.compile(_HOST.replace("{0,252}", "{0,252}$").replace(".-]", "._-]"))


@dataclass(frozen=True)
class Origin:
    """What is known of where a line is from.

    Attributes:
        rank: the global rank.
        local: the local rank.
        host: the node.
        time: seconds of the year by the clock of the line's host.
        level: the level of the log line, in capitals.
        cycle: the number of the cycle.
    """

    rank: int | None = None
    local: int | None = None
    host: str | None = None
    time: float | None = None
    level: str = ""
    cycle: int | None = None


@dataclass(frozen=True)
class Line:
    """A line of a log.

    Attributes:
        file: its file.
        number: its number in the file, from 1.
        text: what follows the prefixes.
        whole: the line with its prefixes; of a JSON object, the text in it.
        origin: where it is from.
    """

    file: str
    number: int
    text: str
    whole: str
    origin: Origin = Origin()


def parse(file: str, number: int, raw: str, of_its_file: Origin = Origin()) -> tuple[Line, ...]:
    """Return a line without its prefixes; more than one for a JSON object with a traceback, none for an empty line.

    Args:
        file: its file.
        number: its number.
        raw: the line.
        of_its_file: what the file's name says (`of_file`); what the line says wins.
    """
    is_record = "{" in raw[:256] and len(raw) <= MAX_RECORD and raw.rstrip().endswith("}")
    whole = without_escapes(raw if is_record else raw[:MAX_LINE]).rstrip()
    if not whole.strip():
        return ()
    origin, text = _without_prefixes(whole, of_its_file)
    record = _record(text)
    if record is None:
        return (Line(file, number, text[:MAX_LINE], whole[:MAX_LINE], origin),)
    return _lines_of(record, Line(file, number, text[:MAX_LINE], whole[:MAX_LINE], origin))


def of_file(name: str) -> Origin:
    """Return what the name of a file says of its lines."""
    found = Origin()
    for pattern in _FILES:
        if match := pattern.search(name):
            groups = match.groupdict()
            found = Origin(_whole(groups.get("rank")), _whole(groups.get("local")))
            break
    host, cycle = _FILE_HOST.search(name), _FILE_CYCLE.search(name)
    return replace(found, host=host["host"] if host else None, cycle=_whole(cycle["cycle"]) if cycle else None)


def seconds_of_year(month: int, day: int, clock: str) -> float | None:
    """Return the seconds from the beginning of the year; None for what is no date."""
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    try:
        days = datetime.date(2024, month, day).timetuple().tm_yday - 1
    except ValueError:
        return None
    return 86400.0 * days + 3600.0 * int(hours) + 60.0 * int(minutes) + float(seconds)


def _of_epoch(moment: float) -> float | None:
    found = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    return seconds_of_year(found.month, found.day, f"{found:%H:%M:%S.%f}")


def _whole(text: str | None) -> int | None:
    return int(text) if text and int(text) < MAX_RANK else None


def _without_prefixes(text: str, origin: Origin) -> tuple[Origin, str]:
    weak: int | None = None
    from_line = False
    for _ in range(MAX_PREFIXES):
        for pattern in _PREFIXES:
            match = pattern.match(text)
            if match:
                break
        else:
            break
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        text = text[match.end() :]
        rank = _whole(groups.get("rank"))
        if rank is not None:
            origin, from_line = replace(origin, rank=rank), True
        local = _whole(groups.get("local") or groups.get("local2"))
        if local is not None and not from_line:
            origin = replace(origin, local=local)
        weak = _whole(groups.get("weak")) if weak is None else weak
        if "clock" in groups:
            origin = replace(origin, time=_time(groups))
            if host := _ISO_HOST.match(text):
                origin, text = replace(origin, host=host["host"] or host["host2"]), text[host.end() :]
        if "host" in groups:
            origin = replace(origin, host=groups["host"])
        if "level" in groups:
            origin = replace(origin, level=groups["level"].upper())
        if groups.get("glog") in {"I", "W"}:
            origin = replace(origin, level=GLOG)
    if weak is not None and origin.rank is None and origin.local is None:
        origin = replace(origin, rank=weak)
    return origin, text


def _time(groups: Mapping[str, str]) -> float | None:
    if "mmdd" in groups:
        month, day = int(groups["mmdd"][:-2]), int(groups["mmdd"][-2:])
    else:
        month, day = _MONTHS.get(groups.get("name", ""), 0) or int(groups.get("month", "0")), int(groups["day"])
    return seconds_of_year(month, day, groups["clock"])


def _record(text: str) -> Mapping[str, object] | None:
    """Return the JSON object that a line is, None where it is none."""
    if not text.startswith("{") or not text.endswith("}"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and any(key in found for key in _JSON_KEYS["text"]) else None


def _lines_of(record: Mapping[str, object], line: Line) -> tuple[Line, ...]:
    values = {
        name: next((record[key] for key in keys if record.get(key) not in (None, "")), None)
        for name, keys in _JSON_KEYS.items()
    }
    origin = line.origin
    if type(rank := values["rank"]) is int and 0 <= rank < MAX_RANK:
        origin = replace(origin, rank=rank)
    if type(local := values["local"]) is int and 0 <= local < MAX_RANK:
        origin = replace(origin, local=local)
    cycle = record.get("iteration" if record.get("initial_rank") == LAUNCHER else "cycle")
    if type(cycle) is int and origin.cycle is None:
        origin = replace(origin, cycle=cycle)
    if isinstance(host := values["host"], str) and _HOST_NAME.match(host):
        origin = replace(origin, host=host)
    if isinstance(level := values["level"], str):
        origin = replace(origin, level=level.upper()[:16])
    if isinstance(moment := values["time"], int | float) and 0 < moment < 1e11:
        origin = replace(origin, time=_of_epoch(float(moment)))
    elif isinstance(moment, str) and (match := re.match(_DATE, moment)):
        origin = replace(origin, time=_time(match.groupdict()))
    text = str(values["text"])
    if isinstance(values["text"], dict):  # the error file of torch's `record`, whose call stack quotes source code
        text = str(values["text"].get("message", ""))
    if "interruption" in record:  # the event of a fault, as the launcher's and the wrapper's logs have it in words
        initial, pid = record.get("faulty_initial_rank"), record.get("pid")
        where = f"rank {record.get('rank')} (initial rank {initial}, {origin.host} pid {pid})"
        text = f"{record['interruption']} on {where}: {record.get('message')}"
    texts = [*text.splitlines(), *(str(values["trace"]).splitlines() if values["trace"] else [])]
    lines = list[Line]()
    for each in texts[:200]:
        found, rest = _without_prefixes(each[:MAX_LINE].rstrip(), origin)
        if rest.strip():
            lines.append(replace(line, text=rest, whole=each[:MAX_LINE], origin=found))
    return tuple(lines)
