"""How the pages are built: ``sphinx-build -W docs <folder>``."""

from physicsnemo_flarepp import __version__

project = "physicsnemo_flarepp"
author = "The physicsnemo_flarepp maintainers"
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
html_theme = "furo"
html_title = f"physicsnemo_flarepp {version}"
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Forward", "Outputs"]  # of PhysicsNeMo's docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes are in the docstrings
autodoc_default_options = {"members": True, "show-inheritance": True}
suppress_warnings = [
    "ref.python",  # one name is public in a room and in the module that defines it
]
