"""The documents make a site without a warning: no dead link, every public name in the reference, nothing fetched."""

import html
import importlib
import pathlib
import pkgutil
import re
import tomllib
import zlib

import pytest
import yaml

import nvrx_core
import nvrx_core.testing
from nvrx_core import fault_tolerance, inprocess

ROOT = pathlib.Path(__file__).parents[2]
INTERNAL = {
    "INJECTORS",
    "LocalMonitor",
    "MonitorThread",
    "RoundView",
    "as_client",
    "another",
    "carry_out",
    "require",
    "require_type",
    "Target",
    "spares_caller",
}
NAMED_ONLY = {"progress_watchdog", "rank_filter"}  # modules that code written for the peer names
FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)="(https?://[^"]+)"')
ADDRESS_OF_PAGE = re.compile(r'<link rel="canonical"[^>]*>')


def public_modules() -> list[str]:
    homes = [f"nvrx_core.inprocess.{name}" for name in inprocess._MODULES if name not in NAMED_ONLY]
    testing = [f"nvrx_core.testing.{module.name}" for module in pkgutil.iter_modules(nvrx_core.testing.__path__)]
    others = ["errors", "failpoint", "events.schema", "events.timeline", "inprocess", "testing"]
    monitors = [f"nvrx_core.fault_tolerance.{name}" for name in fault_tolerance._MODULES]
    return homes + testing + monitors + [f"nvrx_core.{name}" for name in others]


@pytest.fixture(scope="module")
def documented(site: pathlib.Path) -> set[str]:
    """The names in the site's inventory: four lines of text, then a name and its place on each line."""
    lines = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4])
    return {line.split()[0] for line in lines.decode().splitlines()}


@pytest.mark.parametrize("module", public_modules())
def test_every_public_name_is_in_the_reference(module: str, documented: set[str]) -> None:
    names = getattr(importlib.import_module(module), "__all__", ())
    missing = {name for name in names if f"{module}.{name}" not in documented} - INTERNAL
    assert not missing, f"no docstring, or {module} is on no page of docs/reference"


def test_a_page_fetches_nothing_when_it_is_read(site: pathlib.Path) -> None:
    pages = [ADDRESS_OF_PAGE.sub("", page.read_text()) for page in site.rglob("*.html")]
    assert len(pages) > 10
    assert not [address for page in pages for address in FETCHED.findall(page)]


def test_every_document_is_in_the_navigation() -> None:
    listed = set(re.findall(r"\S+\.md", yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


def test_each_page_shows_the_version_and_leads_to_the_repository(site: pathlib.Path) -> None:
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    page = (site / "how-to" / "plain-pytorch" / "index.html").read_text()
    assert nvrx_core.__version__ in page
    assert f'href="{address}/edit/main/docs/how-to/plain-pytorch.md"' in page


def test_the_home_page_has_the_doors_of_the_readme() -> None:
    readme, home = (ROOT / name for name in ("README.md", "docs/index.md"))
    doors = [
        re.findall(r"^\|.*\|$", page.read_text().partition("| you have |")[2], re.MULTILINE)[:5]
        for page in (readme, home)
    ]
    assert [line.replace("(docs/", "(") for line in doors[0]] == doors[1]
    assert "pip install ." in home.read_text().partition("| you want to |")[0]


@pytest.mark.parametrize("page", ["docs/index.md", "docs/how-to/index.md", "docs/reference/index.md"])
def test_a_link_of_an_index_has_the_title_of_its_page(page: str) -> None:
    text = (ROOT / page).read_text()
    listed = text.rpartition("|---|---|\n")[2]
    links = re.findall(r"\[([^\]]+)\]\(([^)#]+\.md)\)", listed)
    titles = {
        path: (ROOT / page).parent.joinpath(path).read_text().partition("# ")[2].partition("\n")[0] for _, path in links
    }
    assert links
    assert [(title, path) for title, path in links if titles[path] != title] == []


@pytest.mark.parametrize("page", ["README.md", "docs/reference/known-limits.md"])
def test_a_page_for_everybody_is_short(page: str) -> None:
    assert len((ROOT / page).read_text().split()) <= 1300


def test_what_is_new_fits_on_one_screen() -> None:
    unreleased = (ROOT / "CHANGELOG.md").read_text().split("\n## [")[1]
    assert len(unreleased.split()) <= 500


def test_a_signature_shows_defaults_and_not_their_declarations(site: pathlib.Path) -> None:
    page = html.unescape(re.sub(r"<[^>]+>", "", (site / "reference" / "wrapper" / "index.html").read_text()))
    assert "soft_timeout: timedelta = timedelta(seconds=60)" in page
    assert "parameter(" not in page
