#!/bin/sh
# Runs a command beside another one, where both leave a part of the processors idle:
#
#   beside.sh "COMMAND" COMMAND...
#
# The output of the first is printed when both have ended. Fails if either fails.
set -eu
log=$(mktemp)
beside=
# Interrupted, this ends both: what a script starts with & does not hear the keyboard's interrupt.
trap '[ -z "$beside" ] || kill -- "-$beside" 2>/dev/null || true; rm -f "$log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# A session of its own: its process group has all that it starts.
setsid sh -c "$1" >"$log" 2>&1 &
beside=$!
shift
failed=0
"$@" || failed=$?
wait "$beside" || failed=$?
beside=
cat "$log"
exit "$failed"
