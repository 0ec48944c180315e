"""How the site is built, by `make docs`: warnings are errors, and nothing is fetched, now or when a page is read."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import lowcal

project = "lowcal"
author = "the lowcal authors"
version = release = lowcal.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "homes", "plain_docstrings", "plain_pages"]
root_doc = "index"
exclude_patterns = ["_build", "_ext", "_static", "_*.md"]

# --- what must not pass -------------------------------------------------------------------------------------------
nitpicky = True
#: Types of other libraries, and aliases that are not on a page; a name of lowcal that is asked for must be found.
nitpick_ignore_regex = [
    (r"py:class", r"(?!lowcal\.).*"),
    (r"py:class", r"lowcal\..*(Array|Geometry|Monitor|Method|Constants|Start|Function|Rows|Design|Frame|Layout)"),
]
myst_heading_anchors = 4
smartquotes = False  # a prime is a prime

# --- the reference ------------------------------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_use_type_comments = False
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 100
add_module_names = False
viewcode_line_numbers = True

# --- the look -----------------------------------------------------------------------------------------------------
html_theme = "furo"
html_title = f"lowcal {version}"
html_static_path = ["_static"]
html_css_files = ["lowcal.css"]
html_js_files = ["lowcal.js"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # a summary would be fetched, which a page opened as a file may not do
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5f8a", "color-brand-content": "#0b5f8a"},
    "dark_css_variables": {"color-brand-primary": "#7cc4ea", "color-brand-content": "#7cc4ea"},
}
pygments_style = "a11y-high-contrast-light"  # Furo brings them
pygments_dark_style = "a11y-high-contrast-dark"
