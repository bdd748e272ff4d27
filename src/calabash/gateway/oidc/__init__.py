"""Log in at an OpenID Connect provider: the authorization code flow with PKCE, as in OAuth 2.1.

This package contains the redirects to the provider and back, the provider's documents and keys, and the checks of an ID
token. The gateway tells the pool which subject of the provider has logged in; the pool decides which of its users this
is.
"""
