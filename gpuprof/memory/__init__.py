"""Who holds GPU memory at the peak: torch's memory snapshots and recorded memory events, read into columns."""
