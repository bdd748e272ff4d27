"""``calabash demo``: three tenants on one card, with every limit measured."""
