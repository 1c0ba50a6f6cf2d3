"""The loop: schedule, run, sample, commit; offline and asynchronous faces."""
