// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// sendTime bounds a try.
	sendTime = 15 * time.Second
	// pauseFirst and pauseMost bound the pause after a try that failed; each pause is twice as long
	// as the one before, give or take a fifth.
	pauseFirst = 500 * time.Millisecond
	pauseMost  = 30 * time.Second
	// answerBytesMax bounds what is read of an answer.
	answerBytesMax = 4 << 10
)

// Feed.send sends the batches of the spool, the oldest first, until the context is done.
func (f *Feed) send(ctx context.Context) {
	pause := pauseFirst
	for {
		more, err := f.sendFirst(ctx)
		if ctx.Err() != nil {
			return
		}
		f.logTrouble(err)
		switch {
		case err != nil:
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause - pause/5 + rand.N(2*pause/5)):
			}
			pause = min(2*pause, f.options.pauseMost)
		case more:
			pause = pauseFirst
		default:
			pause = pauseFirst
			select {
			case <-ctx.Done():
				return
			case <-f.wake:
			}
		}
	}
}

// logTrouble logs the beginning and the end of trouble.
func (f *Feed) logTrouble(err error) {
	text := ""
	if err != nil {
		text = err.Error()
		f.failed.Add(1)
	}
	before := f.trouble.Swap(&text)
	switch was := before != nil && *before != ""; {
	case text != "" && !was:
		f.options.Logger.Warn("what happened cannot be sent to the control plane, and waits in the spool; limits go on", "error", text)
	case text == "" && was:
		f.options.Logger.Info("what happened is sent to the control plane again")
	}
}

// Feed.sendFirst sends the oldest batch in the spool. The result named more is false if the spool
// has no batch.
func (f *Feed) sendFirst(ctx context.Context) (more bool, err error) {
	b, ok := f.spool.oldest()
	if !ok {
		return false, nil
	}
	text, err := f.spool.text(&b)
	if errors.Is(err, fs.ErrNotExist) {
		f.options.Logger.Error("a batch is missing in the spool: who removed it?", "file", b.name())
		return true, f.spool.done(&b)
	}
	if err != nil {
		return true, err
	}
	status, answer, err := f.put(ctx, &b, text)
	switch {
	case err != nil:
		return true, err
	case status == http.StatusOK:
		f.sent.Add(1)
		if n := countUnread(answer); n > 0 {
			f.options.Logger.Error("the control plane cannot read lines of a batch, and leaves them out; has it another version?", "file", b.name(), "lines", n)
		}
		return true, f.spool.done(&b)
	case isUnreadable(status):
		f.rejected.Add(1)
		f.options.Logger.Error("the control plane rejects a batch, which is kept aside", "file", b.name(), "status", status, "answer", answer)
		return true, f.spool.reject(&b)
	}
	return true, fmt.Errorf("the control plane answered %d: %s", status, answer)
}

// countUnread returns the number of lines that the control plane has left out.
func countUnread(answer string) int64 {
	var a struct{ Unread int64 }
	if json.Unmarshal([]byte(answer), &a) != nil {
		return 0
	}
	return a.Unread
}

// isUnreadable reports whether the control plane rejects the batch itself, so that no later try can
// succeed.
func isUnreadable(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity
}

// Feed.put sends a batch to the control plane. It returns the status and the beginning of the
// answer.
func (f *Feed) put(ctx context.Context, b *batch, text []byte) (status int, answer string, err error) {
	r, err := f.target.Load().Request(ctx, http.MethodPut, "/v1/batches/"+b.feed+"/"+strconv.FormatInt(b.number, 10), bytes.NewReader(text))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/x-ndjson")
	r.Header.Set("Content-Encoding", "gzip")
	r.Header.Set("Penstock-Node", f.options.Node)
	response, err := f.options.Client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	return response.StatusCode, strings.TrimSpace(string(read)), err
}
