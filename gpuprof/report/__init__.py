"""What a Diagnosis looks like on a terminal, on the HTML page, in charts and in a notebook.

Pure functions; nothing is decided here.
"""
