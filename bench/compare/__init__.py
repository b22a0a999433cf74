"""`make bench-compare`: what users of TransferQueue run today, beside this project, on one Mooncake client in one process."""
