// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"testing"

	"github.com/penstock/penstock/internal/store/memstore"
)

// TestAStoreIsOpenUntilItsRequestsAreDone: a reload may remove a store from all configurations
// while some of its requests are still in progress.
func TestAStoreIsOpenUntilItsRequestsAreDone(t *testing.T) {
	memory, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	closed := 0
	running := func() bool { return false }
	s := &pooledStore{Store: memory, settler: newSettler(memory), exiting: running, close: func() error { closed++; return memory.Close() }}
	s.hold()
	s.hold()
	s.release()
	if err := s.Destruct(); err != nil || closed != 0 {
		t.Fatalf("closed %d times under a request, error %v", closed, err)
	}
	s.hold() // a request that still uses the old configuration
	s.release()
	if closed != 0 {
		t.Fatal("closed under the request that came first")
	}
	s.release()
	if closed != 1 {
		t.Fatalf("closed %d times after the last request", closed)
	}
	s.hold()
	s.release()
	if closed != 1 {
		t.Errorf("closed %d times", closed)
	}
	unused := &pooledStore{Store: memory, settler: newSettler(memory), exiting: running, close: func() error { closed++; return nil }}
	if err := unused.Destruct(); err != nil || closed != 2 {
		t.Errorf("a store without requests is not closed at once, error %v", err)
	}
}
