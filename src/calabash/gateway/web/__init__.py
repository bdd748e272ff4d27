"""The console: pages and forms in a browser, made on the server from the same replies that the command line prints.

What lives here: what pages show (``pages``), how it looks (``templates``, ``static``, ``drawing``, ``words``), and what forms
ask (``form_table``). What never lives here: rights. Pages offer what their visitor may do, and the pool refuses the rest.
"""
