"""Translation of each group of network objects (routers, groups, load balancers, gateways) to northbound rows."""
