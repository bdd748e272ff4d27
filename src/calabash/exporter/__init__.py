"""Prometheus exporter of a pool: a catalogue of metrics, and collectors that read the pool's state at each scrape.

Here live the catalogue (names, types, units, labels, bounds on the number of series), collectors over the pool's typed replies,
the same figures under the names of other exporters, the scraped page, and dashboards and alert rules made from the catalogue.
Never here: state of its own, decisions, device access. The reference page is made from the catalogue.
"""
