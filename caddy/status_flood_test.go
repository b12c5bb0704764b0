// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/status"
)

// TestOneAddressAsksForItsLimitsABoundedNumberOfTimes: an address that asks more than 50 times in a
// second is answered 429, and other addresses are answered.
func TestOneAddressAsksForItsLimitsABoundedNumberOfTimes(t *testing.T) {
	s := start(t, `{
		servers {
			trusted_proxies static 127.0.0.1/32
			trusted_proxies_strict
		}
	}
	:PORT {
		penstock 3/30d
		penstock_status /quota
	}`)
	connection, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(s.port))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	const requests = 1000
	begin := time.Now().Unix()
	go func() { // all at once, because a slow machine sends fewer than 50 a second one by one
		_, _ = io.WriteString(connection, strings.Repeat("GET /quota HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 198.51.100.1\r\n\r\n", requests))
	}()
	replies, counts := bufio.NewReader(connection), map[int]int{}
	for range requests {
		response, err := http.ReadResponse(replies, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		counts[response.StatusCode]++
		if response.StatusCode == http.StatusTooManyRequests {
			equal(t, "Retry-After", response.Header.Get("Retry-After"), "1")
		}
	}
	seconds := int(time.Now().Unix() - begin + 1)
	if counts[200] > seconds*status.EachMax || counts[200]+counts[429] != requests {
		t.Errorf("%v in at most %d seconds", counts, seconds)
	}
	others := 0
	for i := range 3 { // addresses can share a bound, but few do
		if s.get("/quota", "X-Forwarded-For", "192.0.2."+strconv.Itoa(i)).StatusCode == 200 {
			others++
		}
	}
	if others < 2 {
		t.Errorf("%d of 3 other addresses are answered", others)
	}
}
