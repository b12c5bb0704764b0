#!/usr/bin/env bash
# Runs targets of the Makefile in parallel, at most JOBS (2) at a time, in the order of the arguments.
# The output of a target goes to .cache/stages/TARGET.log. It is printed in full if the target fails;
# otherwise one line is printed, and the lines of the output that begin with "note: ". Every target
# runs, even if others fail. The last line names those that failed, and the exit status is then 1.
# The line of a target shows how long it took, and how long the processors worked for it.
# The word "then" among the arguments waits until all targets before it have ended.
#
# A target low:TARGET has the lowest priority: it gets the processors while the other targets leave
# them idle, and does not delay them. Such targets run one after the other, beside the others and
# beyond JOBS, and "then" does not wait for them.
#
# Put a target that mostly waits (e2e) first, so that the others use the processors meanwhile.
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-2}
logs=.cache/stages
mkdir -p "$logs"

declare -A target_of=() begun_at=()
failed=()
low=()       # the targets of the lowest priority that have not begun
low_running= # the process of the one that runs

# lowest is a script that runs its arguments with the lowest priority. A session can be a group of
# its own for the scheduler, with a priority of its own.
# shellcheck disable=SC2016 # the inner shell expands it
lowest='{ echo 19 >/proc/self/autogroup; } 2>/dev/null
chrt -i 0 true 2>/dev/null && exec chrt -i 0 "$@"
exec nice -n 19 "$@"'

# timed is a script that runs its words, except for the first. The first word names a file, into
# which the script writes the processor time, in seconds: of the programs and of the kernel.
# shellcheck disable=SC2016 # the inner shell expands it
timed='TIMEFORMAT="%U %S"; exec 3>"$0"; { time "$@" 2>&4; } 4>&2 2>&3'

# begin TARGET [COMMAND...] starts a target in its own process group, so that it can be stopped with
# all its child processes. The command runs the words that follow it.
begin() {
	setsid "${@:2}" bash -c "$timed" "$logs/$1.processors" "${MAKE:-make}" --no-print-directory "$1" >"$logs/$1.log" 2>&1 &
	target_of[$!]=$1
	begun_at[$!]=$SECONDS
}

# begin_low starts the next target of the lowest priority, unless one runs.
begin_low() {
	[ -z "$low_running" ] && [ ${#low[@]} -gt 0 ] || return 0
	begin "${low[0]}" bash -c "$lowest" lowest
	low_running=$!
	low=("${low[@]:1}")
}

# running prints how many targets run that are not of the lowest priority.
running() {
	local n=${#target_of[@]}
	[ -z "$low_running" ] || n=$((n - 1))
	echo "$n"
}

# finish waits for one of the running targets and prints its result.
finish() {
	local pid status=0
	wait -n -p pid || status=$?
	local target=${target_of[$pid]} took=$((SECONDS - begun_at[$pid])) processors
	processors=$(awk '{ printf "%.0f", $1 + $2 }' "$logs/$target.processors")
	unset "target_of[$pid]"
	if [ "$pid" = "$low_running" ]; then
		low_running=
		begin_low
	fi
	if [ "$status" -eq 0 ]; then
		grep '^note: ' "$logs/$target.log"
		printf 'ok      %-12s %4d s, processors %4s s\n' "$target" "$took" "$processors"
		return
	fi
	failed+=("$target")
	printf '\n======== the output of %s (%s)\n' "$target" "$logs/$target.log"
	cat "$logs/$target.log"
	printf '======== %s ends here\n\nFAILED  %-12s %4d s, processors %4s s\n' "$target" "$target" "$took" "$processors"
}

# stop stops the running targets.
stop() {
	for pid in "${!target_of[@]}"; do kill -TERM -- "-$pid" 2>/dev/null; done
	exit 130
}
trap stop INT TERM HUP

for target in "$@"; do
	case $target in
	then) while [ "$(running)" -gt 0 ]; do finish; done ;;
	low:*)
		low+=("${target#low:}")
		begin_low
		;;
	*)
		while [ "$(running)" -ge "$jobs" ]; do finish; done
		begin "$target"
		;;
	esac
done
while [ ${#target_of[@]} -gt 0 ]; do finish; done

if [ ${#failed[@]} -gt 0 ]; then
	echo "FAILED: ${failed[*]} (all in $SECONDS s)"
	exit 1
fi
echo "all of $* in $SECONDS s"
