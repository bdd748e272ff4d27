"""Mode brokered: the programs of a tenant use the device through workers."""
