// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Exchange sends a message to the agent of a region, and decodes the answer, which has at most
// bytesMax bytes of JSON.
func Exchange(client *http.Client, message *http.Request, region string, bytesMax int64, answer any) error {
	response, err := client.Do(message)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(io.LimitReader(response.Body, bytesMax))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("region %s answered %s: %.200q", region, response.Status, text)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the answer of region %s cannot be read", region)
	}
	return nil
}

// Receive reads a message of another region, which has at most bytesMax bytes, and then occupies a
// place until the caller calls leave. If the message is too long, or all places are occupied,
// Receive answers the request itself, and ok is false.
func Receive(w http.ResponseWriter, r *http.Request, places chan struct{}, bytesMax int64) (text []byte, leave func(), ok bool) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bytesMax))
	if err != nil {
		http.Error(w, "the message is too long, or was cut off", http.StatusBadRequest)
		return nil, nil, false
	}
	select {
	case places <- struct{}{}: // only after the body was read, because it may come slowly
		return text, func() { <-places }, true
	default:
		http.Error(w, "too many messages", http.StatusServiceUnavailable)
		return nil, nil, false
	}
}
