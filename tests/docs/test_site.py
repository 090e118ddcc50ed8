"""The documentation as a site: it builds without a warning, and its pages fetch nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from doc_pages import ROOT, pages

import drumline


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_site_has_all_pages_in_both_languages(site):
    for language, folder in (("en", site), ("zh", site / "zh")):
        for name in pages(language):
            if name != "README":
                page = (folder / f"{name}.html").read_text()
                assert f'lang="{language}"' in page
                assert re.search(r'class="md-content".*<h1', page, re.DOTALL), name


def test_site_fetches_nothing_from_elsewhere(site):
    """Scripts, styles, fonts and pictures are all in the folder."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.findall(r'src="(?:https?:)?//[^"]+"', text), page
        fetched = re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*>', text)
        assert not [tag for tag in fetched if "http" in tag or '="//' in tag], page


def test_site_describes_the_whole_public_api(site):
    text = (site / "api.html").read_text()
    for name in drumline.__all__:
        assert f'id="drumline.{name}"' in text
