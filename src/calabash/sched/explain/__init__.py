"""Why a request waits: what the nodes say (``nodes``), and what its queue says (``why``)."""
