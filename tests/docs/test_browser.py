"""The site in a browser of the size of a phone: every page loads whole, fits, and leads nowhere wrong.

Chromium is the machine's own; playwright drives it. Without one, these tests are skipped.
"""

from __future__ import annotations

import functools
import http.server
import pathlib
import shutil
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--no-sandbox",  # there is none in a container, and the pages are our own
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1400, "height": 900}
LOOK = """() => ({
    width: document.documentElement.scrollWidth,
    links: [...document.querySelectorAll("a[href]")].map(link => link.href),
    anchors: [...document.querySelectorAll("[id]")].map(each => each.id),
})"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a response that is no success fails the test by itself."""


class Seen(NamedTuple):
    """What a page holds once it is loaded."""

    width: int
    links: set[str]
    anchors: set[str]


@pytest.fixture(scope="module")
def address(site: pathlib.Path) -> Iterator[str]:
    """Where the site is served."""
    handler = functools.partial(QuietHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=[0.01])
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with (
        playwright.sync_playwright() as started,
        started.chromium.launch(executable_path=path, args=OPTIONS) as browser,
    ):
        yield browser


def pages(site: pathlib.Path) -> list[str]:
    """The path of each page, as its address ends."""
    paths = [path.relative_to(site) for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    return [str(path).removesuffix("index.html") for path in paths]


def complaints(page: Any, address: str) -> list[str]:
    """A list that grows by what goes wrong while pages load; a request that the next page aborts does not."""
    found: list[str] = []

    def failed(asked: Any) -> None:
        if asked.failure != "net::ERR_ABORTED":
            found.append(f"{asked.failure}: {asked.url}")

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            found.append(f"console: {message.text}")

    def requested(asked: Any) -> None:
        if not asked.url.startswith((address, "data:")):
            found.append(f"fetched from elsewhere: {asked.url}")

    def answered(response: Any) -> None:
        if response.status >= 400:
            found.append(f"{response.status}: {response.url}")

    page.on("console", said)
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    page.on("requestfailed", failed)
    page.on("request", requested)
    page.on("response", answered)
    return found


def look(page: Any, url: str) -> Seen:
    page.goto(url, wait_until="load")
    seen = page.evaluate(LOOK)
    return Seen(seen["width"], set(seen["links"]), set(seen["anchors"]))


def broken(seen: dict[str, Seen], site: pathlib.Path, address: str) -> list[str]:
    """The links within the site that lead to no file, or to no place on their page."""
    found = []
    for url, each in seen.items():
        for link in each.links:
            target, anchor = urldefrag(link)
            if not target.startswith(address):
                continue
            file = site / unquote(target.removeprefix(address))
            on_page = target not in seen or not anchor or unquote(anchor) in seen[target].anchors
            if not (file.is_file() or (file / "index.html").is_file()) or not on_page:
                found.append(f"{url}: {link}")
    return found


def test_every_page_loads_fits_a_phone_and_has_no_broken_link(chromium, site, address):
    with chromium.new_context(viewport=PHONE) as context, context.new_page() as page:
        wrong = complaints(page, address)
        seen = {urljoin(address, path): look(page, urljoin(address, path)) for path in pages(site)}
    assert len(seen) > 30
    assert not wrong
    assert not {url: each.width for url, each in seen.items() if each.width > PHONE["width"]}
    assert not broken(seen, site, address)


def test_the_site_is_dark_where_the_system_is_and_by_its_switch(chromium, address):
    with chromium.new_context(viewport=DESK, color_scheme="dark") as context, context.new_page() as page:
        page.goto(address)
        scheme = functools.partial(page.get_attribute, "body", "data-md-color-scheme")
        assert scheme() == "slate"
        page.click("label[title='Switch to light mode']")
        assert scheme() == "default"
        page.reload()
        assert scheme() == "default"


def test_a_page_leads_to_its_source_and_its_neighbours(chromium, address):
    with chromium.new_context(viewport=DESK) as context, context.new_page() as page:
        page.goto(urljoin(address, "reference/wrapper/"))
        assert page.get_attribute("a[rel=edit]", "href").endswith("/edit/main/docs/reference/wrapper.md")
        assert page.inner_text(".md-source__fact--version")
        assert page.is_visible("a.md-footer__link--prev")
        assert page.is_visible("a.md-footer__link--next")
        assert page.inner_text("article h2").split()[0] == "Wrapper"
        assert not page.is_visible(".md-nav__link[href*='0001-']"), "the decisions are collapsed"
