"""Run folders as `gpuprof trace` leaves them: every value is validated, since files cannot be trusted."""
