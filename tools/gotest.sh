#!/usr/bin/env bash
# gotest.sh COMMAND... runs a go test command. "gotest.sh again" repeats the tests that failed in
# earlier commands.
#
# A test that waits for a process fails if a busy machine starves that process. So, if AGAIN names a
# file, up to twenty failing tests do not fail the command. Instead, the command, restricted to these
# tests and their packages, is added to the file, and `gotest.sh again` repeats it when nothing else
# runs. After another failure, it repeats the command a last time. If only subtests failed, the
# first repetition runs only these, and the last one runs their whole tests. A test that fails three
# times has failed. The output of each failure is printed even if the test passes later, because it
# may show a rare mistake. Data races, panics, and tests that hang fail at once.
set -uo pipefail
most=20

first() {
	local log status=0 failed
	log=$(mktemp)
	# shellcheck disable=SC2064 # the name is expanded now, while it is known
	trap "rm -f '$log'" EXIT
	"$@" 2>&1 | tee "$log" || status=$?
	[ "$status" -ne 0 ] || return 0
	[ -n "${AGAIN:-}" ] || return "$status"
	mapfile -t failed < <(sed -nE 's/^--- FAIL: ([A-Za-z0-9_]+) .*/\1/p' "$log" | sort -u)
	if [ ${#failed[@]} -eq 0 ] || [ ${#failed[@]} -gt "$most" ] ||
		grep -qE '^panic: |DATA RACE|\[(build|setup) failed\]' "$log"; then
		return "$status"
	fi
	# A failure outside a test, for example in TestMain, has only the FAIL line of its package.
	local packages
	mapfile -t packages < <(sed -nE 's,^FAIL[[:space:]]+([^[:space:]]+/[^[:space:]]+).*,\1,p' "$log" | sort -u)
	[ ${#packages[@]} -le ${#failed[@]} ] || return "$status"
	local whole
	whole="^($(IFS='|'; echo "${failed[*]}"))\$"
	{
		only "$whole$(subtests "$log")" "${packages[*]}" "$@"
		only "$whole" "${packages[*]}" "$@"
	} | paste -s >>"$AGAIN"
	sed 's/^/note: /' "$log" | grep -vE '^note: (ok|\?) ' | tail -n 400
	echo "note: failed beside other tests, and runs once more: ${failed[*]}"
}

# subtests LOG prints the part of a pattern that selects the failed subtests: for each level, the
# names of the subtests that failed. It ends before the first level at which one of the failed tests
# has no failed subtest.
subtests() {
	sed -nE 's/^ *--- FAIL: ([^ ]+) \(.*/\1/p' "$1" | awk -F/ '
		{ names[NR] = $0 }
		END {
			for (level = 1; ; level++) {
				list = ""
				for (i = 1; i <= NR; i++) {
					parts = split(names[i], part, "/")
					deeper = 0
					for (j = 1; j <= NR; j++) deeper += index(names[j], names[i] "/") == 1
					if (parts <= level && !deeper) exit
					if (parts <= level || seen[level, part[level + 1]]++) continue
					gsub(/[][().*+?^$|{}\\]/, "\\\\&", part[level + 1])
					list = list (list == "" ? "" : "|") part[level + 1]
				}
				printf "/^(%s)$", list
			}
		}'
}

# only PATTERN PACKAGES COMMAND... prints the command with PATTERN in place of its own -run, and with
# PACKAGES in place of its own: relative folders, or import paths.
only() {
	local pattern=$1 packages=$2 words=("$3")
	shift 3
	while [ $# -gt 0 ]; do
		case $1 in
		-run) shift ;;
		./* | [!-/^]*/*/*) ;;
		*) words+=("$1") ;;
		esac
		shift
	done
	# shellcheck disable=SC2086 # each package is an argument
	printf '%q ' "${words[@]}" -run "$pattern" $packages
	echo
}

# again repeats each command of the file AGAIN. If a command fails, the one after the tab runs.
again() {
	local command whole log status=0
	[ -s "${AGAIN:?}" ] || return 0
	log=$(mktemp)
	# shellcheck disable=SC2064 # the name is expanded now, while it is known
	trap "rm -f '$log'" EXIT
	while IFS=$'\t' read -r command whole; do
		echo "note: again: $command"
		bash -c "$command" </dev/null 2>&1 | tee "$log" && continue
		if grep -qE '^panic: |DATA RACE|\[(build|setup) failed\]' "$log"; then
			status=1
			continue
		fi
		sed 's/^/note: /' "$log"
		echo "note: failed alone, and runs a last time: ${whole:=$command}"
		bash -c "$whole" </dev/null || status=1
	done <"$AGAIN"
	return "$status"
}

if [ "$*" = again ]; then
	again
else
	first "$@"
fi
