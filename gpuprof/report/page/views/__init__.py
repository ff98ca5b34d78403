"""The page's views: timeline, flames and kernel table, as columns that the viewer reads."""
