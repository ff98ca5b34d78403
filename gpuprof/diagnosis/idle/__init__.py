"""Why a device waits: every gap, split by cause, and what such waits hide."""
