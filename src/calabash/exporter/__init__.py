"""Prometheus exporter of a pool: a catalogue of metrics, and collectors that read the pool's state at each scrape.

This package contains the catalogue of metrics (names, types, units, labels, and the largest number of series of each),
collectors that compute the metrics from the pool's typed replies, the same figures under the names of other exporters,
the page that Prometheus scrapes, and dashboards and alert rules for the metrics. The reference page of the
documentation is made from the catalogue. The exporter keeps no state except a count of events, makes no decisions and
does not access devices.
"""
