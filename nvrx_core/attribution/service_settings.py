"""What the attribution service is told, and the checks of it that are made before anything is started."""

from __future__ import annotations

import importlib.util
import os
import stat
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from nvrx_core.errors import ConfigurationError

__all__ = [
    "Model", "ServiceSettings", "check_export_url", "check_installed", "check_model_url", "check_url", "read_key",
]  # fmt: skip

NEEDED: Final = ("starlette", "uvicorn", "httpx")
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
MAX_KEY: Final = 4_096


@dataclass(frozen=True)
class Model:
    """A language model behind an endpoint that is compatible with OpenAI's.

    Attributes:
        base_url: as in https://api.example.com/v1.
        name: its name there.
        key: the API key.
    """

    base_url: str
    name: str
    key: str


@dataclass(frozen=True)
class ServiceSettings:
    """What the service does.

    Attributes:
        host, port: where it listens.
        descriptor: a socket that listens already, -1 for none.
        root: the folder below which the logs are, without symbolic links.
        token: what requests must show, None for nothing.
        model: explains verdicts; None: nothing is sent anywhere.
        export_url: gets each result; "" for none.
    """

    host: str
    port: int
    root: str
    descriptor: int = -1
    token: bytes | None = None
    model: Model | None = None
    export_url: str = ""


def check_installed(option: str) -> None:
    """Refuse to start without what the service needs.

    Raises:
        ConfigurationError: names what is missing.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        advice = "pip install 'nvrx[attribution]'"
        raise ConfigurationError("command line", option, f"not installed: {', '.join(missing)}", advice)


def read_key(path: str, option: str) -> str:
    """Return the key in a file that nobody else can read.

    Raises:
        ConfigurationError: when it cannot be read, has no key, or is open to others.
    """
    advice = f"name a file with the key, of mode 600, with {option} or in LLM_API_KEY_FILE"
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # of a FIFO
            found = os.fstat(file.fileno())
            key = file.read(MAX_KEY + 1).decode("ascii").strip() if stat.S_ISREG(found.st_mode) else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError("command line", option, f"{path!r} cannot be read: {error}", advice) from None
    if not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise ConfigurationError("command line", option, f"{path!r} has no key", advice)
    by_group = 0o040 if found.st_uid == 0 and found.st_gid in (os.getegid(), *os.getgroups()) else 0  # a pod's secret
    if found.st_mode & 0o077 & ~by_group or found.st_uid not in (0, os.geteuid()):
        problem = f"{path!r} is open to others: mode {stat.S_IMODE(found.st_mode):o}, user {found.st_uid}"
        advice = f"chmod 600 {path} (of a Kubernetes secret, set defaultMode to 0400), and use a new key"
        raise ConfigurationError("command line", option, problem, advice)
    return key


def check_model_url(url: str, option: str) -> None:
    """Refuse a base URL to which the key would go in the clear.

    Raises:
        ConfigurationError: when it is none, or neither https nor local.
    """
    _refuse_clear(check_url(url, option), url, option)


def check_export_url(url: str, option: str) -> None:
    """Refuse what is no plain URL.

    Raises:
        ConfigurationError: when it is no http(s) URL, or has a query or a fragment.
    """
    parts = check_url(url, option)
    _refuse_clear(parts, url, option)
    if parts.query or parts.fragment:
        problem = f"{url!r} has a query or a fragment"
        raise ConfigurationError("command line", option, problem, "write it without what follows ? or #")


def _refuse_clear(parts: SplitResult, url: str, option: str) -> None:
    if parts.scheme == "http" and parts.hostname not in LOCAL:
        problem = f"{url!r} would get lines of logs, or the key, without encryption"
        raise ConfigurationError("command line", option, problem, "write it with https://")


def check_url(url: str, option: str) -> SplitResult:
    """Return the parts of a URL of http or https, without user and password, which would be shown.

    Raises:
        ConfigurationError: when it is none.
    """
    try:
        parts = urlsplit(url)
        is_plain = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and is_plain and "@" not in url:
            return parts
    except ValueError:
        pass
    problem = f"{url.rpartition('@')[2]!r} is no plain URL of http or https"
    raise ConfigurationError("command line", option, problem, "write it as in https://host.example.com/v1")
