"""The host: users, rights, disks and silent servers."""
