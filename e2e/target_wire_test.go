// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// http2To returns a sender of HTTP/2 requests without TLS, each over a new connection.
func http2To(to string) targetSender {
	return func(f requestForm, address, upstream string) string {
		connection, err := net.Dial("tcp", to)
		if err != nil {
			return "error: " + err.Error()
		}
		defer connection.Close()
		_ = connection.SetDeadline(time.Now().Add(f.patience()))
		_, _ = io.WriteString(connection, http2.ClientPreface)
		framer := http2.NewFramer(connection, connection)
		_ = framer.WriteSettings()
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.hpacked(address, upstream), EndStream: true, EndHeaders: true})
		return readStream(framer)
	}
}

// requestForm.fields returns the header fields of the request in HTTP/2 and HTTP/3. The first line
// of the host becomes :authority, and each further line becomes a field named host.
func (f requestForm) fields(address, upstream string) (fields [][2]string) {
	fields = append(fields, [2]string{":method", f.method})
	if f.method != "CONNECT" {
		fields = append(fields, [2]string{":scheme", "http"}, [2]string{":path", f.target})
	}
	var lines [][2]string
	for i, host := range strings.Split(f.host, "\n") {
		switch {
		case f.method == "CONNECT":
			fields = append(fields, [2]string{":authority", f.target})
		case host == "-":
		case i == 0 && host != "":
			fields = append(fields, [2]string{":authority", host})
		default:
			lines = append(lines, [2]string{"host", strings.TrimPrefix(host, "Host: ")})
		}
	}
	return append(append(fields, lines...), [2]string{"x-forwarded-for", address}, [2]string{"x-upstream", upstream})
}

func (f requestForm) hpacked(address, upstream string) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range f.fields(address, upstream) {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	return block.Bytes()
}

// readStream returns the answer on the first stream. If the stream or the connection ends early, it
// also says how.
func readStream(framer *http2.Framer) string {
	var answer strings.Builder
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return answer.String() + "\nerror: " + err.Error()
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			for _, field := range frame.Fields {
				answer.WriteString(field.Name + ": " + field.Value + "\n")
			}
		case *http2.DataFrame:
			answer.Write(frame.Data())
		case *http2.RSTStreamFrame:
			return answer.String() + "\nreset: " + frame.ErrCode.String()
		case *http2.GoAwayFrame:
			return answer.String() + "\ngone: " + frame.ErrCode.String()
		}
		if header := frame.Header(); header.StreamID == 1 && header.Flags&http2.FlagDataEndStream != 0 &&
			(header.Type == http2.FrameData || header.Type == http2.FrameHeaders) {
			return answer.String()
		}
	}
}
