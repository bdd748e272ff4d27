"""Pages and forms of the web console, rendered on the server from the replies that the command line prints too.

This package contains the data of pages (``pages``), their appearance (``templates``, ``static``, ``drawing``,
``words``) and the forms (``form_table``). It decides no permissions: pages offer only the actions that the visitor may
perform, and the pool checks each request.
"""
