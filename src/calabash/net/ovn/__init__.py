"""Translation of tenant networks to rows of OVN's northbound database."""
