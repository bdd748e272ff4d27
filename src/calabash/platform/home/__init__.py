"""The home directory of a pool: files, logs, backups and limits."""
