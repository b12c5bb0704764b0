// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/penstock/penstock/core/policy"
)

// ParseJSON reads a JSON document into nodes. If the document is not JSON, ParseJSON returns nil
// and adds a problem.
func ParseJSON(name string, data []byte, found *Report) *Node {
	p := jsonParser{name: name, found: found, lines: lines{data: data}}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		offset := len(data)
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			offset = int(syntax.Offset) - 1
		}
		found.Add(policy.Problem{Path: "json", Place: placeAt(name, p.lines.of(offset)), Why: err.Error()})
		return nil
	}
	p.decoder = json.NewDecoder(bytes.NewReader(data))
	p.decoder.UseNumber()
	return p.value(0)
}

// jsonParser walks the tokens of valid JSON.
type jsonParser struct {
	name    string
	decoder *json.Decoder
	lines   lines
	found   *Report
	deep    bool // a value nested too deeply has been reported
	wide    bool // a block with too many keys has been reported
}

// jsonParser.token returns the next token and its position. A JSON token has no line breaks, so it
// ends on the line on which it begins.
func (p *jsonParser) token() (json.Token, string) {
	token, err := p.decoder.Token()
	if err != nil { // cannot happen: the document is valid
		return nil, ""
	}
	return token, p.place()
}

func (p *jsonParser) place() string {
	if p.name == "" {
		return ""
	}
	return placeAt(p.name, p.lines.of(int(p.decoder.InputOffset())))
}

func (p *jsonParser) value(depth int) *Node {
	token, place := p.token()
	n := &Node{Place: place}
	switch token := token.(type) {
	case json.Delim:
		if depth >= depthMax {
			p.tooDeep(place)
			p.skip()
			return n
		}
		if token == '[' {
			n.Kind = KindList
			for p.decoder.More() {
				n.Items = append(n.Items, p.value(depth+1))
			}
		} else {
			n.Kind = KindMap
			for p.decoder.More() {
				key, keyPlace := p.token()
				value := p.value(depth + 1)
				if len(n.Entries) == keysMax {
					p.tooWide(keyPlace)
					continue
				}
				n.Set(fmt.Sprint(key), keyPlace, value)
			}
		}
		p.token()
	case string:
		n.Kind, n.Text = KindWord, token
	case json.Number:
		n.Kind, n.Text = KindNumber, token.String()
	case bool:
		n.Kind, n.Text = KindBool, fmt.Sprint(token)
	}
	return n
}

// jsonParser.skip reads to the end of the list or map that was just opened.
func (p *jsonParser) skip() {
	for open := 1; open > 0; {
		token, err := p.decoder.Token()
		if err != nil {
			return
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			open++
		case json.Delim(']'), json.Delim('}'):
			open--
		}
	}
}

func (p *jsonParser) tooDeep(place string) {
	if !p.deep {
		p.deep = true
		p.found.Add(deepProblem("json", place))
	}
}

func (p *jsonParser) tooWide(place string) {
	if !p.wide {
		p.wide = true
		p.found.Add(wideProblem("json", place))
	}
}

func wideProblem(format, place string) policy.Problem {
	return policy.Problem{Path: format, Place: place, Why: fmt.Sprintf("has more than %d keys in one block", keysMax)}
}

func deepProblem(format, place string) policy.Problem {
	return policy.Problem{Path: format, Place: place, Why: fmt.Sprintf("is nested deeper than %d levels", depthMax)}
}
