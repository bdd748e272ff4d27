"""Requests to web servers of others: an identity provider, whoever is to be notified.

What lives here: one bounded request at a time over HTTP/1.1, and the rule which addresses may be reached. What never lives
here: what is asked and what the answer means. No redirect is followed, no proxy is asked, nothing is kept between two requests.
"""

from calabash.transport.web.addresses import AddressRule
from calabash.transport.web.client import WebAnswer, WebClient

__all__ = ["AddressRule", "WebAnswer", "WebClient"]
