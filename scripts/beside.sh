#!/bin/sh
# Runs a command beside another one, where both leave a part of the processors idle:
#
#   beside.sh "COMMAND" COMMAND...
#
# The output of the first is printed when both have ended. Fails if either fails.
set -eu
log=$(mktemp)
trap 'rm -f "$log"' EXIT
sh -c "$1" >"$log" 2>&1 &
beside=$!
shift
failed=0
"$@" || failed=$?
wait "$beside" || failed=$?
cat "$log"
exit "$failed"
