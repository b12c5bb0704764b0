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

// linePart is the part of a line that is read next.
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
			e.endLine()
			piece = piece[1:]
		case e.part == partName:
			e.readName(c)
			piece = piece[1:]
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

// lineRest returns the number of bytes before the next line end.
func lineRest(piece []byte) int {
	for i, c := range piece {
		if c == '\n' || c == '\r' {
			return i
		}
	}
	return len(piece)
}

// readName reads a byte of a field's name, or the colon after it.
func (e *eventReader) readName(c byte) {
	switch {
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

// endLine ends a line, and the event if the line is empty.
func (e *eventReader) endLine() {
	empty := e.part == partName && len(e.name) == 0
	if e.part == partName && e.isData() { // a field without colon has an empty value
		e.beginData()
	}
	e.part, e.name, e.later = partName, e.name[:0], true
	if empty {
		e.endEvent()
	}
}

func (e *eventReader) endEvent() {
	if e.size > documentBytesMax { // a client can make an event too large, as it can a document
		e.t.scan.state = stateTooDeep
	}
	e.t.endDocument()
	e.begun, e.size = false, 0
}

// eventReader.end ends the stream. An event that is not followed by an empty line counts if its
// document is complete, because some servers omit that line.
func (e *eventReader) end() { e.endEvent() }
