"""What the site takes from the package: its version, and the address of its repository."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

import nvrx_core


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the links to the repository, and the version that header and footer show."""
    config.repo_url = repository(Path(config.config_file_path).with_name("pyproject.toml"))
    config.repo_name = "Repository"
    config.edit_uri = "edit/main/docs/"
    config.extra["release"] = nvrx_core.__version__
    config.copyright = f"{config.site_name} {nvrx_core.__version__}, Apache-2.0"
    return config


def repository(project: Path) -> str:
    """Return the address of the repository: of the one that builds the site on GitHub, else that of the package."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ['GITHUB_SERVER_URL']}/{name}/"
    address: str = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    return f"{address}/"
