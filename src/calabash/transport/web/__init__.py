"""HTTP client for external web servers, and the application that calls the handlers of the product's own HTTP APIs.

The client is for identity providers and receivers of webhooks. It makes one bounded request at a time over HTTP/1.1, and
restricts the addresses that may be reached. It follows no redirects, uses no proxy, and keeps no connection between two
requests.
"""

from calabash.transport.web.addresses import AddressRule
from calabash.transport.web.client import WebAnswer, WebClient

__all__ = ["AddressRule", "WebAnswer", "WebClient"]
