#!/usr/bin/env bash
# Runs targets of the Makefile in parallel, at most JOBS (2) at a time, in the order of the arguments.
# The output of a target goes to .cache/stages/TARGET.log. It is printed in full if the target fails;
# otherwise one line is printed, and the lines of the output that begin with "note: ". Every target
# runs, even if others fail. The last line names those that failed, and the exit status is then 1.
# The word "then" among the arguments waits until all targets before it have ended.
#
# Put a target that mostly waits (e2e) first, so that the others use the processors meanwhile.
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-2}
logs=.cache/stages
mkdir -p "$logs"

declare -A target_of=() begun_at=()
failed=()

# begin TARGET starts a target in its own process group, so that it can be stopped with all its
# child processes.
begin() {
	setsid "${MAKE:-make}" --no-print-directory "$1" >"$logs/$1.log" 2>&1 &
	target_of[$!]=$1
	begun_at[$!]=$SECONDS
}

# finish waits for one of the running targets and prints its result.
finish() {
	local pid status=0
	wait -n -p pid || status=$?
	local target=${target_of[$pid]} took=$((SECONDS - begun_at[$pid]))
	unset "target_of[$pid]"
	if [ "$status" -eq 0 ]; then
		grep '^note: ' "$logs/$target.log"
		printf 'ok      %-12s %4d s\n' "$target" "$took"
		return
	fi
	failed+=("$target")
	printf '\n======== the output of %s (%s)\n' "$target" "$logs/$target.log"
	cat "$logs/$target.log"
	printf '======== %s ends here\n\nFAILED  %-12s %4d s\n' "$target" "$target" "$took"
}

# stop stops the running targets.
stop() {
	for pid in "${!target_of[@]}"; do kill -TERM -- "-$pid" 2>/dev/null; done
	exit 130
}
trap stop INT TERM HUP

for target in "$@"; do
	if [ "$target" = then ]; then
		while [ ${#target_of[@]} -gt 0 ]; do finish; done
		continue
	fi
	[ ${#target_of[@]} -lt "$jobs" ] || finish
	begin "$target"
done
while [ ${#target_of[@]} -gt 0 ]; do finish; done

if [ ${#failed[@]} -gt 0 ]; then
	echo "FAILED: ${failed[*]} (all in $SECONDS s)"
	exit 1
fi
echo "all of $* in $SECONDS s"
