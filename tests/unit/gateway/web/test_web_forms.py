"""Tests of the requests that the console's forms send to the pool."""

from __future__ import annotations

import pytest

from calabash.api.routes import ROUTES
from calabash.gateway.web.form_table import FORMS
from calabash.model.errors import CalabashError


def test_every_form_asks_a_route_that_there_is_with_fields_that_it_knows() -> None:
    routes = {r.endpoint: r for r in ROUTES}
    for form in FORMS.values():
        route = routes[form.endpoint]
        assert form.at is None or len(form.at) == len(form.endpoint.variables), form.name
        said = set(form.shaped(dict.fromkeys(form.fields, "1")))
        assert said <= set(route.body.__struct_fields__ if route.body else ()), form.name
        assert set(form.query) <= set(route.query.__struct_fields__ if route.query else ()), form.name


def test_a_form_says_only_what_was_filled_in() -> None:
    path, body = FORMS["drain"].request({"id": "3", "reason": " fan ", "evict": "on", "grace_s": "10m"})
    assert (path, body) == ("/v1/devices/3/drain", {"reason": "fan", "evict": True, "grace_s": 600.0})
    assert FORMS["queue"].request({"name": "a/b", "limit": ""}) == ("/v1/queues/a%2Fb", {"limit": None})


def test_a_field_that_is_no_number_is_named() -> None:
    with pytest.raises(CalabashError, match="limit: 'two' is not a number"):
        FORMS["queue"].request({"name": "a", "limit": "two"})


def test_bounds_of_networks_are_typed_as_on_the_command_line_and_taken_away_by_none() -> None:
    tenant = FORMS["tenant"]
    assert tenant.request({"name": "a", "networks": "vpc=4, eip=8"})[1] == {"networks": {"vpc": 4, "eip": 8}}
    assert tenant.request({"name": "a", "networks": "none"})[1] == {"networks": {}}
    assert tenant.request({"name": "a", "networks": " "})[1] == {}
    for wrong in ("vpc", "vpc=", "vpc=-1", "vpc=many", "moon=1", "vpc=9999999999"):
        with pytest.raises(CalabashError, match=r"networks: .* is not a limit of network objects") as told:
            tenant.request({"name": "a", "networks": wrong})
        assert "vpc=4,eip=8" in (told.value.hint or "")


def test_a_form_that_does_not_say_what_it_is_about_asks_nothing() -> None:
    with pytest.raises(CalabashError, match="the name is missing"):
        FORMS["undrain"].request({"id": ""})


def test_a_name_in_a_form_never_leads_to_another_route_or_page() -> None:
    path, _ = FORMS["undrain"].request({"id": "../../v1/shutdown?x="})
    assert path == "/v1/devices/..%2F..%2Fv1%2Fshutdown%3Fx%3D/undrain"
    assert FORMS["undrain"].page({"id": "//evil.example"}, {}) == "/devices/%2F%2Fevil.example"
