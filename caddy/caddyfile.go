// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("penstock", parseDirective)
	// Directives that are registered later come closer to basic_auth, so penstock_status runs
	// before penstock.
	httpcaddyfile.RegisterDirectiveOrder("penstock_status", httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterDirectiveOrder("penstock", httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterGlobalOption("penstock", parseGlobalOption)
}

// parseDirective reads the penstock directive:
//
//	penstock [<matcher>] [<count>/<window> [burst <n>] [<algorithm>]...] {
//	    name   <namespace>
//	    policy <file>
//	    policy redis <name> { key <public key>, state_dir <folder>, node <name> }
//	    policy http <name> { url <url>, token_file <file>, key <public key>, ... }
//	    shadow policy <file>
//	    rule   <name> [<limit>...] { <words of a rule> }
//	    <words of a policy>
//	    <words of a rule, for the limit on the first line>
//	}
func parseDirective(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	site := siteOf(h)
	b := newBlock(h.Dispenser)
	b.nameLine = func() string { return lineName(h.State, site) }
	if err := b.read(); err != nil {
		return nil, err
	}
	d, err := b.document()
	if err != nil {
		return nil, err
	}
	handler := &Handler{Name: d.Name, Policy: b.from.file, PolicyRedis: b.from.redis, PolicyHTTP: b.from.http, ShadowPolicy: b.shadowPolicy, PolicyWords: wordsOf(d)}
	if len(d.Rules) > 0 || b.from.count() > 0 || b.shadowPolicy != "" {
		handler.Site = site
	}
	return handler, nil
}

// lineName names the rule of a one-line directive. The rules of a site are named default, default-2
// and so on, in file order.
func lineName(state map[string]any, site string) string {
	key := "penstock.lines " + site
	n, _ := state[key].(int)
	state[key] = n + 1
	return defaultName(n + 1)
}

// parseGlobalOption reads the penstock global option:
//
//	penstock {
//	    name   <namespace>
//	    store  memory|redis ...
//	    directory
//	    events_to stdout|<file>|syslog...|none
//	    control <url> { token_file <file>, spool <folder>, spool_bytes <size> }
//	    policy <file>
//	    policy redis <name> { key <public key>, state_dir <folder>, node <name> }
//	    policy http <name> { url <url>, token_file <file>, key <public key>, ... }
//	    shadow policy <file>
//	    region <name>
//	    rule   <name> [<limit>...] { <words of a rule> }
//	    <words of a policy>
//	}
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	if existing != nil {
		d.Next()
		return nil, d.Errf("penstock is listed twice in the global options; write everything in one block")
	}
	b := newBlock(d)
	if err := b.read(); err != nil {
		return nil, err
	}
	document, err := b.document()
	if err != nil {
		return nil, err
	}
	app := &App{Name: document.Name, Policy: b.from.file, PolicyRedis: b.from.redis, PolicyHTTP: b.from.http, ShadowPolicy: b.shadowPolicy, Store: b.store, Directory: b.directory,
		EventsTo: b.eventsTo, Control: b.control, Region: b.region, PolicyWords: wordsOf(document)}
	return httpcaddyfile.App{Name: "penstock", Value: caddyconfig.JSON(app, nil)}, nil
}

// UnmarshalCaddyfile reads the directive outside of a site. The directive's one-line rule is named
// independently of other directives.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	b := newBlock(d)
	b.nameLine = func() string { return defaultName(1) }
	if err := b.read(); err != nil {
		return err
	}
	document, err := b.document()
	if err != nil {
		return err
	}
	h.Name, h.Policy, h.PolicyRedis, h.PolicyHTTP = document.Name, b.from.file, b.from.redis, b.from.http
	h.ShadowPolicy, h.PolicyWords = b.shadowPolicy, wordsOf(document)
	return nil
}

var _ caddyfile.Unmarshaler = (*Handler)(nil)
