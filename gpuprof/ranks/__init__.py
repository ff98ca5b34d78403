"""Many ranks: each recording becomes a small digest, and all digests are replayed together."""
