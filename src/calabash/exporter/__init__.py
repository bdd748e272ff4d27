"""What Prometheus reads of a pool: one catalogue of metrics, and collectors that read the pool's state at each scrape.

What lives here: the catalogue (names, types, units, labels, how many series), collectors over the pool's typed replies, the
same figures under names that others' dashboards know, the page that is scraped, dashboards and alert rules made from the
catalogue. What never lives here: state of its own, decisions, device access. The reference page is made from the catalogue.
"""
