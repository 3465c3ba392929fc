"""Files and folders on disks and in buckets: writes, owners, leases, local copies."""
