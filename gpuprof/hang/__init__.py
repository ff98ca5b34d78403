"""Why a job hangs: flight recorder dumps, Python stacks and processes in, the rank and the line out."""
