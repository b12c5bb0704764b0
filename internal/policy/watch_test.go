// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fast is the pace of tests; polling comes too late to help.
var fast = pace{quiet: 10 * time.Millisecond, longest: 100 * time.Millisecond, absent: 150 * time.Millisecond,
	poll: time.Hour}

// told is what a watcher said.
type told struct {
	name string // of the policy
	err  error
}

// watching watches a file for the length of a test.
func watching(t *testing.T, path string, pace pace) (*Watcher, chan told) {
	t.Helper()
	said := make(chan told, 100)
	w, err := watch(path, pace, func(d *Document, err error) {
		if err != nil {
			said <- told{err: err}
			return
		}
		said <- told{name: d.Name}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w, said
}

// next returns what the watcher says next.
func next(t *testing.T, said chan told) told {
	t.Helper()
	select {
	case what := <-said:
		return what
	case <-time.After(10 * time.Second):
		t.Fatal("the watcher said nothing in 10 s")
		return told{}
	}
}

func wantName(t *testing.T, said chan told, name string) {
	t.Helper()
	if what := next(t, said); what.err != nil || what.name != name {
		t.Fatalf("the watcher said %+v, want the policy %q", what, name)
	}
}

// wantSilence asks the watcher to reload and holds that nothing was said before that.
func wantSilence(t *testing.T, w *Watcher, said chan told, name string) {
	t.Helper()
	// Every event that is on its way is looked at after quiet; the marker is the answer to Reload, which comes after.
	deadline := time.After(5 * fast.quiet)
	select {
	case what := <-said:
		t.Fatalf("the watcher said %+v, want nothing", what)
	case <-deadline:
	}
	if err := w.Reload(); err != nil {
		t.Fatal(err)
	}
	wantName(t, said, name)
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
	w, said := watching(t, path, fast)
	write(t, path, policyText("two"))
	wantName(t, said, "two")
	write(t, path, policyText("two")) // the same content is no change
	wantSilence(t, w, said, "two")
	write(t, filepath.Join(filepath.Dir(path), "other.yaml"), policyText("other"))
	wantSilence(t, w, said, "two")
}

// Editors write another file and rename it over the first one; some move the first one away before.
func TestWatchSeesTheFileReplaced(t *testing.T) {
	dir := t.TempDir()
	path, temporary, backup := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, ".policy.swp"), filepath.Join(dir, "policy.yaml~")
	write(t, path, policyText("p0"))
	_, said := watching(t, path, fast)
	for i := 1; i <= 5; i++ {
		name := fmt.Sprintf("p%d", i)
		write(t, temporary, policyText(name))
		if i%2 == 0 {
			rename(t, path, backup)
		}
		rename(t, temporary, path)
		wantName(t, said, name)
	}
}

// Kubernetes mounts policy.yaml -> ..data/policy.yaml and ..data -> ..VERSION, and swaps ..data.
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
	_, said := watching(t, path, fast)
	for n := 1; n <= 5; n++ {
		folder := version(n)
		link(t, filepath.Base(folder), filepath.Join(dir, "..data_tmp"))
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
		if err := os.RemoveAll(old); err != nil {
			t.Fatal(err)
		}
		old = folder
		wantName(t, said, fmt.Sprintf("v%d", n))
	}
}

// A link in the middle of the way (current -> releases/1) is swapped, and then the file behind it is edited.
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
	_, said := watching(t, filepath.Join(current, "policy.yaml"), fast)
	link(t, filepath.Join("releases", "2"), temporary)
	rename(t, temporary, current)
	wantName(t, said, "r2")
	write(t, filepath.Join(dir, "releases", "2", "policy.yaml"), policyText("r2-edited"))
	wantName(t, said, "r2-edited")
}

// An edit with an error is told with its place, and the next good one as a policy.
func TestWatchTellsWhatIsWrong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, policyText("good"))
	w, said := watching(t, path, fast)
	write(t, path, "name: bad\nrules: [{name: a, limits: 1/1s}]\n")
	what := next(t, said)
	if what.err == nil || !strings.HasPrefix(what.err.Error(), "policy.yaml:2: rules[0].limits: is not a word") {
		t.Fatalf("the watcher said %+v, want what is wrong in line 2", what)
	}
	write(t, path, policyText("good")) // as it was before: it is told all the same, for what was told last is not
	wantName(t, said, "good")
	wantSilence(t, w, said, "good")
}

// A file that is gone, or empty, for a moment is no error. One that stays away is told once, and when it is back.
func TestWatchSurvivesAFileThatIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, policyText("one"))
	patient := fast
	patient.absent = time.Minute
	_, said := watching(t, path, patient)
	write(t, path, "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, policyText("two"))
	wantName(t, said, "two")

	_, said = watching(t, path, fast)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if what := next(t, said); what.err == nil || !strings.Contains(what.err.Error(), "no such file") {
		t.Fatalf("the watcher said %+v, want that the file is gone", what)
	}
	write(t, path, policyText("two"))
	wantName(t, said, "two")
}

// twoFolders makes two folders, each with a policy at the path within it that is called as the folder.
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

// A release that is swapped as a folder is seen at once, and then what is written in it.
func TestWatchSeesTheFolderReplaced(t *testing.T) {
	folder, other := twoFolders(t, "policy.yaml")
	path := filepath.Join(folder, "policy.yaml")
	_, said := watching(t, path, fast)
	rename(t, folder, folder+".old")
	rename(t, other, folder)
	wantName(t, said, "other")
	write(t, path, policyText("edited"))
	wantName(t, said, "edited")
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if what := next(t, said); what.err == nil {
		t.Errorf("the folder is gone, and the watcher said %+v", what)
	}
}

// Where nothing is told, as on network file systems, the file is read from time to time: here a folder above that of the
// file is replaced, which no watch notices.
func TestWatchPolls(t *testing.T) {
	folder, other := twoFolders(t, "conf/policy.yaml")
	eager := fast
	eager.poll = 20 * time.Millisecond
	_, said := watching(t, filepath.Join(folder, "conf/policy.yaml"), eager)
	rename(t, folder, folder+".old")
	rename(t, other, folder)
	wantName(t, said, "other")
}

func TestWatchReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, policyText("one"))
	w, said := watching(t, path, fast)
	if err := w.Reload(); err != nil {
		t.Fatal(err)
	}
	wantName(t, said, "one")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, path, policyText("two"))
	if err := w.Reload(); err == nil || !strings.Contains(err.Error(), "no longer watched") {
		t.Errorf("Reload after Close = %v", err)
	}
	if len(said) > 0 {
		t.Errorf("after Close the watcher said %+v", <-said)
	}
}

func TestWatchRefusesWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{"policy.ini": "the extension must be", "absent.yaml": "no such file"} {
		if _, err := Watch(filepath.Join(dir, name), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Watch(%q) = %v, want %q", name, err, want)
		}
	}
}

// Links that lead in a circle end the way.
func TestRouteOfACircle(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	link(t, path, path)
	if r := routeTo(path); !r.has(path) || len(r.folders) != 1 {
		t.Errorf("routeTo = %+v, want the link and its folder", r)
	}
}

// TestAFileIsFollowedWhereNobodyTellsOfIt: Linux has 128 watches for all processes of a user.
func TestAFileIsFollowedWhereNobodyTellsOfIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(name string) {
		if err := os.WriteFile(path, []byte("name: "+name+"\nrules:\n  - {name: a, limit: 1/1m}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	deaf := fast
	deaf.deaf, deaf.alone = true, 20*time.Millisecond
	w, said := watching(t, path, deaf)
	if w.notify != nil {
		t.Fatal("it hears")
	}
	write("two")
	wantName(t, said, "two")
}

// TestAPanicOverAnEditIsTold: it is one edit's, and the next is told as ever.
func TestAPanicOverAnEditIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, "name: one\nrules: [{name: a, limit: 1/1m}]\n")
	said := make(chan told, 100)
	w, err := watch(path, fast, func(d *Document, err error) {
		if err == nil && d.Name == "bad" {
			panic("provoked")
		}
		said <- told{err: err}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	write(t, path, "name: bad\nrules: [{name: a, limit: 1/1m}]\n")
	panicked := new(PanicError)
	if err := next(t, said).err; !errors.As(err, &panicked) || panicked.Reason != "provoked" ||
		!strings.Contains(string(panicked.Stack), "watch_test.go") || !strings.Contains(err.Error(), "provoked") {
		t.Errorf("a panic is told as %v", err)
	}
	if err := w.Reload(); !errors.As(err, &panicked) {
		t.Errorf("and to who reloads as %v", err)
	}
	_ = next(t, said)
	write(t, path, "name: good\nrules: [{name: a, limit: 1/1m}]\n")
	if err := next(t, said).err; err != nil {
		t.Errorf("the edit after it: %v", err)
	}
}
