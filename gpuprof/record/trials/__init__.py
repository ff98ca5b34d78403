"""In a process of a trial: patches, timing, and a fingerprint of what it computes."""
