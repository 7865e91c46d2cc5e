"""A runtime for Tuner in a package of its own: every attempt is a Slurm job."""
