"""Tests of the webhook configurations: the objects that API servers send for review."""

from __future__ import annotations

import re
from typing import Any

import pytest

from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import mutating, validating
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.objects import names

SETTINGS = AdmissionSettings()


def pattern(configuration: dict[str, Any]) -> re.Pattern[str]:
    expression = configuration["webhooks"][0]["matchConditions"][0]["expression"]
    found = re.search(r"matches\(r'(.*?)'\)", expression)
    assert found is not None
    return re.compile(found[1])


def test_every_word_of_every_dialect_is_asked_about_and_no_other() -> None:
    asked = pattern(mutating(SETTINGS))
    for dialect in DIALECTS:
        for name in dialect.resources:
            assert asked.match(name.replace("<profile>", "1g.10gb"))
    for name in ("cpu", "memory", "nvidia.com/hostdev", "nvidiaXcom/gpu", "example.com/gpu", "xnvidia.com/gpu"):
        assert asked.match(name) is None


def test_names_of_device_classes_are_asked_about() -> None:
    asked = pattern(mutating(AdmissionSettings(extended_resources=("example.com/gpu",))))
    assert asked.match("deviceclass.resource.kubernetes.io/vgpu.calabash.dev")
    assert asked.match("example.com/gpu")
    for name in ("deviceclassXresource.kubernetes.io/a", "example.com/gpus", "exampleXcom/gpu"):
        assert asked.match(name) is None


@pytest.mark.parametrize("configuration", [mutating(SETTINGS), validating(SETTINGS)])
def test_each_webhook_has_a_name_of_its_own_a_bounded_time_and_no_side_effect(configuration: dict[str, Any]) -> None:
    found = configuration["webhooks"]
    assert len({webhook["name"] for webhook in found}) == len(found)
    for webhook in found:
        assert webhook["sideEffects"] == "None"
        assert webhook["timeoutSeconds"] == 5
        assert webhook["clientConfig"]["service"]["name"] == SETTINGS.service


def test_a_namespace_is_under_one_of_the_mutating_webhooks_or_off() -> None:
    policies = {}
    for webhook in mutating(SETTINGS)["webhooks"]:
        name, mode = webhook["namespaceSelector"]["matchExpressions"]
        assert set(name["values"]) == {"calabash-system", "kube-system", "kube-public", "kube-node-lease"}
        assert mode["key"] == names.ADMISSION
        policies[webhook["failurePolicy"]] = (mode["operator"], mode["values"])
    assert policies == {"Fail": ("NotIn", ["off", "optional"]), "Ignore": ("In", ["optional"])}


def test_plans_are_protected_in_every_namespace_from_everybody_but_the_product() -> None:
    webhook = validating(SETTINGS)["webhooks"][0]
    assert webhook["failurePolicy"] == "Fail"
    assert "namespaceSelector" not in webhook
    expression = webhook["matchConditions"][0]["expression"]
    for word in (*SETTINGS.trusted_users, names.PLAN, names.REQUEST, names.DIALECT):
        assert f"'{word}'" in expression


def test_a_server_outside_the_cluster_is_reached_by_its_address() -> None:
    webhook, _ = validating(SETTINGS, ca_bundle="QQ==", url="https://127.0.0.1:1")["webhooks"]
    assert webhook["clientConfig"] == {"url": "https://127.0.0.1:1/validate", "caBundle": "QQ=="}
