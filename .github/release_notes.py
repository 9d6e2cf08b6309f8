"""Print the notes of a release: `python .github/release_notes.py v1.2.3` takes its section of CHANGELOG.md.

Fails when the tag is not the version of the package, or when CHANGELOG.md has no section for it.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(tag: str) -> str:
    """Return the notes of `tag`, or raise `SystemExit` with what is to be done."""
    version = package_version((ROOT / "nvrx_core" / "__init__.py").read_text(encoding="utf-8"))
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, the package's version {version}: set it in nvrx_core/__init__.py")
    if not (notes := section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)):
        raise SystemExit(f"CHANGELOG.md has no section [{version}]: rename 'Unreleased', and add its date")
    return notes


def package_version(source: str) -> str:
    """Return what `__version__` is set to."""
    return re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)[0]


def section(changelog: str, version: str) -> str:
    """Return the text below the heading of `version`, up to that of the version before; "" without such a heading."""
    _, *sections = re.split(r"^## \[(.+?)\].*\n", changelog, flags=re.MULTILINE)
    texts = dict(zip(sections[::2], sections[1::2], strict=True))
    return texts.get(version, "").strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: release_notes.py TAG")
    print(main(sys.argv[1]))
