"""The reading edition: `make book` builds it from the notebooks as they are stored, and from the docstrings."""

import parlab

project = "parlab"
author = "the parlab authors"
version = release = parlab.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "tools.book"]
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "notebooks/solutions/*.ipynb"]
exclude_patterns = [".*", "build", "**/.ipynb_checkpoints"]  # or it walks through all that is installed in .venv

nb_execution_mode = "off"  # what is stored is what a test compares with a fresh run
nb_ipywidgets_js = {}  # no kernel, no widgets: each stored its picture
myst_heading_anchors = 3
myst_heading_slug_func = "tools.lessons.anchor"
myst_enable_extensions = []  # no formulas that a script from the network would draw

autodoc_default_options = {"members": True, "imported-members": True, "member-order": "groupwise"}
autodoc_typehints = "none"  # shapes and units stand in the text; the signature keeps the names
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "code"
smartquotes = False

html_theme = "furo"
html_title = "parlab"
html_static_path = ["book.css"]
html_css_files = ["book.css"]
html_show_sphinx = html_show_copyright = html_copy_source = False
