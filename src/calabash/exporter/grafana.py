"""Convert the dashboards of ``panels`` to Grafana's JSON format."""

from __future__ import annotations

from typing import Any

from calabash.exporter.panels import Dashboard, Panel

SCHEMA_VERSION = 39  # Grafana 11; newer ones migrate it
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHTS = {"stat": 4, "gauge": 4}
_COLUMNS = 24


def grafana(board: Dashboard) -> dict[str, Any]:
    """Return a dashboard in the form that Grafana imports; the user chooses the data source in Grafana."""
    return {
        "uid": board.name,
        "title": board.title,
        "description": board.text,
        "tags": ["calabash"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_data_source(), *(_variable(*found) for found in board.variables)]},
        "annotations": {"list": []},
        "panels": _placed(board.panels),
    }


def _data_source() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}


def _variable(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "type": "query",
        "name": label,
        "label": label.capitalize(),
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"{label}-values"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Return the panels with their positions in the grid: from left to right, each row as high as its highest panel."""
    found: list[dict[str, Any]] = []
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _COLUMNS:
            x, y, height = 0, y + height, 0
        own = _HEIGHTS.get(panel.shape, 8)
        found.append(_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": own}))
        x, height = x + panel.width, max(height, own)
    return found


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    table = panel.shape == "table"
    return {
        "id": number,
        "type": panel.shape,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"cellHeight": "sm"} if table else {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                "instant": table,
                "range": not table,
                "format": "table" if table else "time_series",
            }
            for index, query in enumerate(panel.queries)
        ],
    }
