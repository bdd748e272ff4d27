"""Explanations of why a request waits: verdicts of the nodes (``nodes``, ``verdicts``) and of its queue (``explainer``)."""
