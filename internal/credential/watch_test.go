// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// watchedKeys is a watched key file, with the contents that have been loaded from it so far.
type watchedKeys struct {
	*watchedFile
	loads []string
}

func watchTest(t *testing.T, text string) *watchedKeys {
	t.Helper()
	w := &watchedKeys{}
	w.watchedFile = &watchedFile{path: write(t, "f", text), sizeMax: 100, notices: newNotices(nil), load: func(data []byte) error {
		w.loads = append(w.loads, string(data))
		return nil
	}}
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	return w
}

// watchedKeys.put writes the file with a modification time.
func (w *watchedKeys) put(t *testing.T, text string, at time.Time) {
	t.Helper()
	if err := os.WriteFile(w.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(w.path, at, at); err != nil {
		t.Fatal(err)
	}
}

func (w *watchedKeys) awaitLoaded(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.loads); diff != "" {
		t.Errorf("(-want +loaded)\n%s", diff)
	}
}

func TestFileThatIsBeingWrittenIsLeftAlone(t *testing.T) {
	w, now := watchTest(t, "old"), time.Now()
	w.put(t, "ne", now.Add(time.Second))
	w.look(now)
	w.put(t, "new,", now.Add(2*time.Second))
	w.look(now)
	w.put(t, "new, all of it", now.Add(3*time.Second))
	w.look(now)
	w.awaitLoaded(t, "old")
	w.look(now)
	w.awaitLoaded(t, "old", "new, all of it")
	for range 3 {
		w.look(now)
	}
	w.awaitLoaded(t, "old", "new, all of it")
}

func TestEditThatDoesNotShowIsSeen(t *testing.T) {
	w := watchTest(t, "old")
	info, err := os.Stat(w.path)
	if err != nil {
		t.Fatal(err)
	}
	// The length and the time are the same; only the content differs.
	w.put(t, "new", info.ModTime())
	w.look(info.ModTime().Add(racyFor / 2))
	w.awaitLoaded(t, "old")
	w.look(info.ModTime().Add(2 * racyFor))
	w.awaitLoaded(t, "old", "new")
}

func TestFileThatIsTouchedIsNotLoadedAgain(t *testing.T) {
	w, now := watchTest(t, "old"), time.Now()
	w.put(t, "old", now.Add(time.Second))
	w.look(now)
	w.look(now)
	w.awaitLoaded(t, "old")
}

// TestFileThatComesBackIsLogged: the end of an outage is logged, and so is the next outage.
func TestFileThatComesBackIsLogged(t *testing.T) {
	log, now := &lines{}, time.Now()
	w := watchTest(t, "one")
	w.notices = newNotices(log.Logger())
	aside := w.path + ".aside"
	for outage := 1; outage <= 2; outage++ {
		if err := os.Rename(w.path, aside); err != nil {
			t.Fatal(err)
		}
		w.look(now)
		w.look(now)
		if err := os.Rename(aside, w.path); err != nil {
			t.Fatal(err)
		}
		for range 3 { // a file that was modified recently is read again
			now = now.Add(racyFor)
			w.look(now)
		}
		if gone, back := log.count("cannot be read"), log.count("can be read again"); gone != outage || back != outage {
			t.Errorf("after %d outages the log tells of %d, and of the end of %d", outage, gone, back)
		}
	}
	w.awaitLoaded(t, "one")
}

// TestFileThatComesBackBrokenIsLogged: a missing file that returns with bad content is not logged
// as unchanged.
func TestFileThatComesBackBrokenIsLogged(t *testing.T) {
	log, now := &lines{}, time.Now()
	w := watchTest(t, "good")
	w.notices = newNotices(log.Logger())
	w.load = func([]byte) error { return errors.New("bad") }
	if err := os.Remove(w.path); err != nil {
		t.Fatal(err)
	}
	w.look(now)
	w.put(t, "bad", now.Add(-time.Hour))
	for range 4 {
		w.look(now)
	}
	if refused, back := log.count("is rejected"), log.count("can be read again"); refused != 1 || back != 0 {
		t.Errorf("the log says %d times that it is refused, and %d times that it is as it was", refused, back)
	}
}
