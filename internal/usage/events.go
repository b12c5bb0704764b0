// SPDX-License-Identifier: Apache-2.0

package usage

// eventReader reads a text/event-stream. Lines end in LF, CR LF or CR. The data lines of an event,
// joined by line feeds, are its document. An empty line ends the event.
type eventReader struct {
	t     *Tap
	part  linePart
	name  []byte // the part of the field's name read so far; at most nameBytesMax
	begun bool   // the event has a data line
	size  int    // bytes of the event's data
	after byte   // the previous byte if it was CR: an LF after it belongs to the same line end
	later bool   // a line has ended, so a byte order mark can no longer come
}

// linePart is the part of a line to which the next byte belongs.
type linePart uint8

const (
	partName  linePart = iota // the field's name
	partSpace                 // the value, which can begin with one space
	partValue                 // the value of a data field
	partOther                 // the rest of a line that is not read
)

// nameBytesMax is how many bytes of a field's name are read. A longer name is not "data", even
// after a byte order mark.
const nameBytesMax = len(byteOrderMark) + len("data") + 1

const byteOrderMark = "\uFEFF"

// eventReader.write parses the next piece of the stream.
func (e *eventReader) write(piece []byte) {
	for len(piece) > 0 {
		c := piece[0]
		pair := e.after == '\r' && c == '\n'
		e.after = c
		switch {
		case pair:
			piece = piece[1:]
		case c == '\r' || c == '\n':
			piece = piece[e.endLines(piece):]
		case e.part == partName:
			piece = piece[e.readName(piece):]
		case e.part == partSpace && c == ' ':
			e.part = partValue
			piece = piece[1:]
		default:
			rest := lineRest(piece)
			if e.part != partOther {
				e.part = partValue
				e.data(piece[:rest])
			}
			e.after = 0
			piece = piece[rest:]
		}
	}
}

// lineEnds returns the number of line ends with which the piece begins.
func lineEnds(piece []byte) int {
	for i, c := range piece {
		if c != '\n' && c != '\r' {
			return i
		}
	}
	return len(piece)
}

// lineRest returns the number of bytes before the next line end.
func lineRest(piece []byte) int {
	for i, c := range piece {
		if c == '\n' || c == '\r' {
			return i
		}
	}
	return len(piece)
}

// readName reads a byte of a field's name, or the colon after it, or all of "data:". readName
// returns the number of bytes read.
func (e *eventReader) readName(piece []byte) int {
	const data = "data:"
	c := piece[0]
	switch {
	case c == 'd' && len(e.name) == 0 && len(piece) >= len(data) && piece[4] == ':' && string(piece[:4]) == "data":
		e.part = partSpace
		e.beginData()
		return len(data)
	case c != ':':
		if e.name = append(e.name, c); len(e.name) == nameBytesMax {
			e.part = partOther
		}
	case e.isData():
		e.part = partSpace
		e.beginData()
	default:
		e.part = partOther
	}
	return 1
}

func (e *eventReader) isData() bool {
	name := string(e.name)
	return name == "data" || !e.later && name == byteOrderMark+"data"
}

// beginData begins a data line. If the event already has a data line, the new line continues its
// document.
func (e *eventReader) beginData() {
	if e.begun {
		e.data([]byte{'\n'})
	}
	e.begun = true
}

// eventReader.data parses the next piece of the event's document.
func (e *eventReader) data(piece []byte) {
	if e.size += len(piece); e.size <= documentBytesMax {
		e.t.scan.write(piece)
	}
}

// endLines ends a line, and the event if the line is empty. Between events, it reads all empty
// lines with which the piece begins. endLines returns the number of bytes read.
func (e *eventReader) endLines(piece []byte) (n int) {
	n = 1
	if e.part == partName {
		switch {
		case len(e.name) > 0:
			if e.isData() { // a field without colon has an empty value
				e.beginData()
			}
		case e.begun:
			e.endEvent()
		default:
			n = lineEnds(piece)
			e.after = piece[n-1]
		}
	}
	e.part, e.later = partName, true
	e.name = e.name[:0]
	return n
}

func (e *eventReader) endEvent() {
	if e.size > documentBytesMax { // a client can make an event too large, as it can a document
		e.t.scan.state = tooDeep
	}
	e.t.endDocument()
	e.begun, e.size = false, 0
}

// eventReader.end ends the stream. An event that is not followed by an empty line counts if its
// document is complete, because some servers omit that line.
func (e *eventReader) end() { e.endEvent() }
