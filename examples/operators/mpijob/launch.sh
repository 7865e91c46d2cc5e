#!/bin/sh
# mpirun with one rank in each worker of an MPIJob. The operator starts launcher and workers at the same time, and mpirun
# gives up on a worker that does not run yet: wait until each one executes a command. The trial's timeout is the limit.
set -eu
while read -r worker _; do
  until "$OMPI_MCA_plm_rsh_agent" "$worker" true </dev/null >/dev/null 2>&1; do sleep 1; done
done </etc/mpi/hostfile
exec mpirun --bind-to none "$@"
