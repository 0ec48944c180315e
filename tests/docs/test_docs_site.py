"""The site builds without a warning, is whole, and needs nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import chromium as driver
import lowcal
import pages

DOCS = pages.ROOT / "docs"

pytest.importorskip("sphinx", reason="the site needs the extra [docs]")
pytest.importorskip("myst_parser", reason="the site needs the extra [docs]")
pytest.importorskip("furo", reason="the site needs the extra [docs]")


def build(source, out):
    """Build as `make docs` does."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(source), str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=pages.ROOT)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = build(DOCS, out)
    assert done.returncode == 0, done.stderr
    return out


class Page(HTMLParser):
    """What a page of the site loads, links to, and can be linked at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in ("link", "script", "img", "iframe", "source"):
            self.loads += [given[key] for key in ("href", "src") if given.get(key)]


@pytest.fixture(scope="module")
def html(site):
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_of_the_sources_is_built(site):
    sources = [path for path in DOCS.rglob("*.md") if not path.relative_to(DOCS).as_posix().startswith("_")]
    assert len(sources) >= 25
    for source in sources:
        assert (site / source.relative_to(DOCS)).with_suffix(".html").exists(), source


def test_nothing_is_loaded_from_elsewhere(site, html):
    for path, page in html.items():
        assert not [url for url in page.loads if re.match(r"(https?:)?//", url)], path
    for path in [*site.rglob("*.css"), *site.rglob("*.js")]:
        text = path.read_text(encoding="utf-8", errors="ignore")
        assert not re.search(r"@import\s+(url\()?[\"']?(https?:)?//|url\([\"']?(https?:)?//", text), path
        assert not re.search(r"(fetch|import)\([\"']https?://", text), path


def test_every_link_inside_the_site_leads_somewhere(site, html):
    broken = []
    for path, page in html.items():
        for link in page.links:
            url, anchor = urldefrag(unquote(link))
            if re.match(r"[a-z]+:", url):
                continue
            target = (path.parent / url).resolve() if url else path
            known = html.get(target)
            if not target.exists() or (anchor and known is not None and anchor not in known.ids):
                broken.append((path.relative_to(site).as_posix(), link))
    assert not broken


def test_every_public_name_can_be_linked_at(site, html):
    ids = set().union(*(page.ids for path, page in html.items() if path.parent.name == "api"))
    modules = {f"module-lowcal.{name}" for name in lowcal._MODULES}
    names = {f"lowcal.{name}" for name in lowcal._HOME}
    assert not (modules | names) - ids


@pytest.mark.skipif(driver.PROGRAM is None, reason="Chromium is not installed (Debian: chromium)")
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen_and_have_no_barriers(site, width):
    with driver.chromium() as browser:
        for name in ("index", "concepts", "examples/index", "examples/census", "benchmarks"):
            for scheme in ("light", "dark"):
                browser.open(site / f"{name}.html", scheme, width)
                assert browser.run("document.documentElement.scrollWidth") <= width, name
                assert browser.run("[...document.images].every(one => one.naturalWidth > 0)"), name
                if driver.AXE.exists():  # npm install --no-package-lock in tests/browser
                    assert not browser.axe(), (name, scheme)


def test_formulas_are_shown_as_written(site):
    def text(name):
        return unescape(re.sub(r"<[^>]+>", "", (site / name).read_text(encoding="utf-8")))

    reference = text("api/audit-and-recalibrate.html")
    assert "max over c in C and w in W of |E[c(x) <w(f(x)), y - f(x)>]| <= alpha" in reference
    assert "2*eta*g - eta^2*B" in text("specification.html")
    assert "||w(z)-w(z')||_inf" in text("specification.html")


@pytest.fixture
def small(tmp_path):
    """A copy of the settings with one page."""
    source = tmp_path / "docs"
    shutil.copytree(DOCS / "_ext", source / "_ext")
    shutil.copytree(DOCS / "_static", source / "_static")
    shutil.copy(DOCS / "conf.py", source)

    def write(*parts):
        (source / "index.md").write_text("\n\n".join(["# A page", *parts]), encoding="utf-8")
        return build(source, tmp_path / "out")

    return write


def rst(text):
    return f"```{{eval-rst}}\n{text}\n```"


def test_what_is_broken_stops_the_build(small):
    done = small(
        "[nowhere](gone-1.md)",
        "[nowhere](#gone-2)",
        rst(".. autofunction:: lowcal.gone_3"),
        rst(":py:obj:`lowcal.gone_4`"),
        "```{toctree}\ngone-5\n```",
    )
    assert done.returncode != 0
    for name in ("gone-1", "gone-2", "gone_3", "gone_4", "gone-5"):
        assert len([line for line in done.stderr.splitlines() if "WARNING" in line and name in line]) == 1, name


def test_what_is_whole_builds(small):
    done = small("[here](#a-page), `lowcal.gone` stays code", rst(".. autofunction:: lowcal.parse_notion"))
    assert done.returncode == 0, done.stderr
