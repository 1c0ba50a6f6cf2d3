"""Measuring: workloads, a light client, the limits of the machine, and reports."""
