"""Logging in at a provider of OpenID Connect: the authorization code flow with PKCE, as OAuth 2.1 wants it.

What lives here: the way of a browser to the provider and back, the provider's documents and keys, and what makes an ID token
good. What never lives here: who of the pool somebody is. The gateway vouches for a subject, and the pool decides.
"""
