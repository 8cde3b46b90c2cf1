"""How Sphinx builds the site from this folder, without the network: `sphinx-build -W docs site`."""

import re

project = "hoptrace"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "hoptrace"
html_copy_source = False
html_show_copyright = False  # LICENSE says it

myst_heading_anchors = 3  # `page.md#a-heading` leads to the heading, as it does on GitHub

default_role = "code"  # docstrings have code between single backticks
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # `fit=ridge`, not the address of a function
autodoc_default_options = {"exclude-members": "model_config"}  # pydantic's, the same everywhere
napoleon_attr_annotations = False  # a class's signature has the types of its attributes
maximum_signature_line_length = 80  # a parameter a line, so that shapes can be read

CONSTRAINED = re.compile(
    r"Annotated\[((?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])+?)"  # brackets in brackets at most
    r"(?:, [~\w.]+\((?:[^()]|\([^()]*\))*\))+\]"
)
"""A type with a constraint of pydantic's, which docstrings say in words."""


def short_signature(app, what, name, object_, options, signature, returns):
    """`int` for `Annotated[int, Ge(ge=1)]`, from the inside out."""
    while signature and (shorter := CONSTRAINED.sub(r"\1", signature)) != signature:
        signature = shorter
    return signature, returns


def description_not_type(app, what, name, object_, options, lines):
    """Keep napoleon from reading the words before a property's first colon as its type."""
    if what in ("property", "attribute", "data"):
        lines[:0] = ["..", ""]  # an empty comment: the first line then has no colon


def setup(app):
    """Called by Sphinx; 400 is before napoleon."""
    app.connect("autodoc-process-signature", short_signature)
    app.connect("autodoc-process-docstring", description_not_type, priority=400)
