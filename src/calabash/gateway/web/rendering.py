"""Render templates to HTML with one Jinja environment: everything is escaped, and an undefined value is an error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from calabash.gateway.web import navigation, offers, words
from calabash.model.units import exact_duration

_FILTERS = {
    "number": words.number,
    "percent": words.percent,
    "share": words.share,
    "memory": words.memory,
    "moment": words.moment,
    "iso": words.iso,
    "ago": words.ago,
    "bounds": words.bounds,
    "command": words.command,
    "hue": words.hue,
    "plural": words.plural,
    "duration": exact_duration,
}


@cache
def loaded_environment() -> Environment:
    """Return the environment with all templates compiled: the files may be unreadable after privileges were dropped.

    Compiling takes about a third of a second, so the gateways of one process share the result.
    """
    made = Environment(
        loader=PackageLoader("calabash.gateway.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    made.filters.update(_FILTERS)
    made.globals.update(navigation=navigation.navigation, offered=offers.offered, may_in=offers.may, named=offers.named)
    for name in made.list_templates(extensions=["html"]):
        made.get_template(name)
    return made


def render(templates: Environment, name: str, shown: Mapping[str, Any]) -> str:
    """Render a template to HTML."""
    return templates.get_template(name).render(shown)
