"""What pages and the API show, as plain data: read with limits, masked, without HTML."""
