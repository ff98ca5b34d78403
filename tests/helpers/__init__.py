"""What several test files share: builders of traces and runs, oracles, browsers, and where recordings are."""
