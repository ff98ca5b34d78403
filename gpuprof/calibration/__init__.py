"""Numbers that come from recordings, or are guesses at what recordings would say: one file a subject, pure data.

Each is a `Number`: a value with its 80 % interval, its unit, where it comes from, the recordings it was fitted on, and
the command that computes it again. docs/calibration.md lists them all. Definitions, file formats and thresholds that
are a matter of taste stay next to the code that uses them.
"""
