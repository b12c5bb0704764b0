// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fast is the pace of the tests. Its polling interval is so long that changes are not detected by
// polling.
var fast = pace{quiet: 10 * time.Millisecond, longest: 100 * time.Millisecond, absent: 150 * time.Millisecond,
	poll: time.Hour}

// watchReport is one report of a watcher.
type watchReport struct {
	name string // of the policy
	err  error
}

// startWatching watches a file for the duration of a test.
func startWatching(t *testing.T, path string, pace pace) (*Watcher, chan watchReport) {
	t.Helper()
	reports := make(chan watchReport, 100)
	w, err := watch(path, pace, func(d *Document, err error) {
		if err != nil {
			reports <- watchReport{err: err}
			return
		}
		reports <- watchReport{name: d.Name}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w, reports
}

// next returns the next report of the watcher.
func next(t *testing.T, reports chan watchReport) watchReport {
	t.Helper()
	select {
	case what := <-reports:
		return what
	case <-time.After(10 * time.Second):
		t.Fatal("the watcher said nothing in 10 s")
		return watchReport{}
	}
}

func wantName(t *testing.T, reports chan watchReport, name string) {
	t.Helper()
	if what := next(t, reports); what.err != nil || what.name != name {
		t.Fatalf("the watcher said %+v, want the policy %q", what, name)
	}
}

// wantSilence reloads and checks that the watcher reported nothing before that.
func wantSilence(t *testing.T, w *Watcher, reports chan watchReport, name string) {
	t.Helper()
	// Pending events are handled after the quiet time. The report of Reload comes after them and
	// marks their end.
	deadline := time.After(5 * fast.quiet)
	select {
	case what := <-reports:
		t.Fatalf("the watcher said %+v, want nothing", what)
	case <-deadline:
	}
	if err := w.Reload(); err != nil {
		t.Fatal(err)
	}
	wantName(t, reports, name)
}

func policyText(name string) string {
	return "name: " + name + "\nrules: [{name: a, limit: 1/1s}]\n"
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

func TestWatchSeesTheFileWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, policyText("one"))
	w, reports := startWatching(t, path, fast)
	write(t, path, policyText("two"))
	wantName(t, reports, "two")
	write(t, path, policyText("two")) // unchanged content is not reported
	wantSilence(t, w, reports, "two")
	write(t, filepath.Join(filepath.Dir(path), "other.yaml"), policyText("other"))
	wantSilence(t, w, reports, "two")
}

// TestWatchSeesTheFileReplaced: editors write another file and rename it over the original; some
// move the original away first.
func TestWatchSeesTheFileReplaced(t *testing.T) {
	dir := t.TempDir()
	path, temporary, backup := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, ".policy.swp"), filepath.Join(dir, "policy.yaml~")
	write(t, path, policyText("p0"))
	_, reports := startWatching(t, path, fast)
	for i := 1; i <= 5; i++ {
		name := fmt.Sprintf("p%d", i)
		write(t, temporary, policyText(name))
		if i%2 == 0 {
			rename(t, path, backup)
		}
		rename(t, temporary, path)
		wantName(t, reports, name)
	}
}

// TestWatchSeesKubernetesSwaps: Kubernetes mounts policy.yaml -> ..data/policy.yaml and ..data ->
// ..VERSION, and replaces the link ..data.
func TestWatchSeesKubernetesSwaps(t *testing.T) {
	dir := t.TempDir()
	version := func(n int) string {
		folder := filepath.Join(dir, fmt.Sprintf("..2026_11_%02d", n))
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(folder, "policy.yaml"), policyText(fmt.Sprintf("v%d", n)))
		return folder
	}
	old := version(0)
	link(t, filepath.Base(old), filepath.Join(dir, "..data"))
	path := filepath.Join(dir, "policy.yaml")
	link(t, "..data/policy.yaml", path)
	_, reports := startWatching(t, path, fast)
	for n := 1; n <= 5; n++ {
		folder := version(n)
		link(t, filepath.Base(folder), filepath.Join(dir, "..data_tmp"))
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
		if err := os.RemoveAll(old); err != nil {
			t.Fatal(err)
		}
		old = folder
		wantName(t, reports, fmt.Sprintf("v%d", n))
	}
}

// TestWatchFollowsALinkOnTheWay: a symbolic link among the parent folders (current -> releases/1)
// is replaced, and then the file that it leads to is edited.
func TestWatchFollowsALinkOnTheWay(t *testing.T) {
	dir := t.TempDir()
	for n := 1; n <= 2; n++ {
		folder := filepath.Join(dir, "releases", fmt.Sprint(n))
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(folder, "policy.yaml"), policyText(fmt.Sprintf("r%d", n)))
	}
	current, temporary := filepath.Join(dir, "current"), filepath.Join(dir, "temporary")
	link(t, filepath.Join(dir, "releases", "1"), current)
	_, reports := startWatching(t, filepath.Join(current, "policy.yaml"), fast)
	link(t, filepath.Join("releases", "2"), temporary)
	rename(t, temporary, current)
	wantName(t, reports, "r2")
	write(t, filepath.Join(dir, "releases", "2", "policy.yaml"), policyText("r2-edited"))
	wantName(t, reports, "r2-edited")
}

// TestWatchReportsErrors: an edit with an error is reported with its place, and the next valid
// edit as a policy.
func TestWatchReportsErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, policyText("good"))
	w, reports := startWatching(t, path, fast)
	write(t, path, "name: bad\nrules: [{name: a, limits: 1/1s}]\n")
	what := next(t, reports)
	if what.err == nil || !strings.HasPrefix(what.err.Error(), "policy.yaml:2: rules[0] \"a\".limits: is an unknown field") {
		t.Fatalf("the watcher said %+v, want what is wrong in line 2", what)
	}
	// the same content as before, but reported, because the last report was an error
	write(t, path, policyText("good"))
	wantName(t, reports, "good")
	wantSilence(t, w, reports, "good")
}

// TestWatchSurvivesAFileThatIsGone: a file that is missing or empty for a moment is not an error. A
// file that remains missing is reported once, and again when it returns.
func TestWatchSurvivesAFileThatIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, policyText("one"))
	longAbsence := fast
	longAbsence.absent = time.Minute
	_, reports := startWatching(t, path, longAbsence)
	write(t, path, "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, policyText("two"))
	wantName(t, reports, "two")

	_, reports = startWatching(t, path, fast)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if what := next(t, reports); what.err == nil || !strings.Contains(what.err.Error(), "no such file") {
		t.Fatalf("the watcher said %+v, want that the file is gone", what)
	}
	write(t, path, policyText("two"))
	wantName(t, reports, "two")
}

// twoFolders makes two folders. Each has a policy at the given path, named like the folder.
func twoFolders(t *testing.T, path string) (folder, other string) {
	t.Helper()
	dir := t.TempDir()
	folder, other = filepath.Join(dir, "folder"), filepath.Join(dir, "other")
	for _, f := range []string{folder, other} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(f, path)), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(f, path), policyText(filepath.Base(f)))
	}
	return folder, other
}

// TestWatchSeesTheFolderReplaced: the watcher detects at once that the folder was replaced, and
// then detects edits in the new folder.
func TestWatchSeesTheFolderReplaced(t *testing.T) {
	folder, other := twoFolders(t, "policy.yaml")
	path := filepath.Join(folder, "policy.yaml")
	_, reports := startWatching(t, path, fast)
	rename(t, folder, folder+".old")
	rename(t, other, folder)
	wantName(t, reports, "other")
	write(t, path, policyText("edited"))
	wantName(t, reports, "edited")
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if what := next(t, reports); what.err == nil {
		t.Errorf("the folder is gone, and the watcher said %+v", what)
	}
}

// TestWatchPolls: without notifications, as on network file systems, the file is read at intervals.
// Here a folder above the file's own is replaced, for which there is no notification.
func TestWatchPolls(t *testing.T) {
	folder, other := twoFolders(t, "conf/policy.yaml")
	polling := fast
	polling.poll = 20 * time.Millisecond
	_, reports := startWatching(t, filepath.Join(folder, "conf/policy.yaml"), polling)
	rename(t, folder, folder+".old")
	rename(t, other, folder)
	wantName(t, reports, "other")
}

func TestWatchReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, policyText("one"))
	w, reports := startWatching(t, path, fast)
	if err := w.Reload(); err != nil {
		t.Fatal(err)
	}
	wantName(t, reports, "one")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, path, policyText("two"))
	if err := w.Reload(); err == nil || !strings.Contains(err.Error(), "no longer watched") {
		t.Errorf("Reload after Close = %v", err)
	}
	if len(reports) > 0 {
		t.Errorf("after Close the watcher said %+v", <-reports)
	}
}

func TestWatchRejectsWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{"policy.ini": "the extension must be", "absent.yaml": "no such file"} {
		if _, err := Watch(filepath.Join(dir, name), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Watch(%q) = %v, want %q", name, err, want)
		}
	}
}

// TestRouteOfACircle: following links terminates even if they form a cycle.
func TestRouteOfACircle(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	link(t, path, path)
	if r := routeTo(path); !r.watches(path) || len(r.folders) != 1 {
		t.Errorf("routeTo = %+v, want the link and its folder", r)
	}
}

// TestAFileIsPolledWithoutNotifications: without notifications the file is polled; Linux allows a
// user's processes only 128 inotify instances.
func TestAFileIsPolledWithoutNotifications(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(name string) {
		if err := os.WriteFile(path, []byte("name: "+name+"\nrules:\n  - {name: a, limit: 1/1m}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	deaf := fast
	deaf.deaf, deaf.alone = true, 20*time.Millisecond
	w, reports := startWatching(t, path, deaf)
	if w.notify != nil {
		t.Fatal("it hears")
	}
	write("two")
	wantName(t, reports, "two")
}

// TestAPanicOverAnEditIsReported: a panic caused by one edit is reported, and the next edit is
// reported as usual.
func TestAPanicOverAnEditIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, "name: one\nrules: [{name: a, limit: 1/1m}]\n")
	reports := make(chan watchReport, 100)
	w, err := watch(path, fast, func(d *Document, err error) {
		if err == nil && d.Name == "bad" {
			panic("provoked")
		}
		reports <- watchReport{err: err}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	write(t, path, "name: bad\nrules: [{name: a, limit: 1/1m}]\n")
	panicked := new(PanicError)
	if err := next(t, reports).err; !errors.As(err, &panicked) || panicked.Reason != "provoked" ||
		!strings.Contains(string(panicked.Stack), "watch_test.go") || !strings.Contains(err.Error(), "provoked") {
		t.Errorf("a panic is reported as %v", err)
	}
	if err := w.Reload(); !errors.As(err, &panicked) {
		t.Errorf("and to who reloads as %v", err)
	}
	_ = next(t, reports)
	write(t, path, "name: good\nrules: [{name: a, limit: 1/1m}]\n")
	if err := next(t, reports).err; err != nil {
		t.Errorf("the edit after it: %v", err)
	}
}

// TestAWatcherOutlivesAnOnChangeThatAlwaysPanics: the process continues, and Reload returns the
// panic as an error.
func TestAWatcherOutlivesAnOnChangeThatAlwaysPanics(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, "name: one\nrules: [{name: a, limit: 1/1m}]\n")
	w, err := watch(path, fast, func(*Document, error) { panic("provoked") })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range 2 {
		if err := w.Reload(); !errors.As(err, new(*PanicError)) {
			t.Errorf("error %v, want the panic", err)
		}
	}
}
