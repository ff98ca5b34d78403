"""The report: one HTML file with the verdict in words, the timeline, flame views, charts and tables."""
