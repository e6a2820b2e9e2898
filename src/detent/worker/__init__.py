"""Workers: claim, execute, settle; leases, rescue, timers."""
