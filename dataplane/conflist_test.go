package dataplane_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vtepd/dataplane"
)

// plugin is an entry of a chain with some of the four conditions met.
func plugin(typ, mode, ipam, ips bool) string {
	e := map[string]any{"type": "tuning", "master": "eth1"}
	if typ {
		e["type"] = "ipvlan"
	}
	if mode {
		e["mode"] = "l3"
	}
	if ipam {
		e["ipam"] = map[string]any{"type": "static"}
	}
	if ips {
		e["capabilities"] = map[string]any{"ips": true}
	}
	text, _ := json.Marshal(e)
	return string(text)
}

func chain(plugins ...string) string {
	return `{"cniVersion":"1.0.0","name":"uplink","plugins":[` + strings.Join(plugins, ",") + `]}`
}

// TestFourConditions: all sixteen combinations in one entry, and again with what is missing in a second one, which changes
// nothing but the words.
func TestFourConditions(t *testing.T) {
	for n := range 16 {
		has := [4]bool{n&1 != 0, n&2 != 0, n&4 != 0, n&8 != 0}
		for _, split := range []bool{false, true} {
			elsewhere := ""
			entries := []string{plugin(has[0], has[1], has[2], has[3])}
			if split {
				// The second entry has what the first lacks; a second ipvlan has a problem of its own.
				entries = append(entries, plugin(!has[0], !has[1], !has[2], !has[3]))
				elsewhere = "; that of plugins[1] doesn't count"
			}
			var want []string
			if split && !has[0] {
				want = append(want, "plugins[1] is ipvlan; must be the first of the chain, and the only one: it makes the link that the others work on")
			}
			for i, text := range []string{
				`plugins[0].type is "tuning"; must be "ipvlan" in the same entry as the rest`,
				`plugins[0].mode is missing; must be "l3" in the same entry as the rest`,
				`plugins[0].ipam.type is missing; must be "static" in the same entry as the rest`,
				`plugins[0].capabilities.ips is missing; must be true in the same entry as the rest`,
			} {
				if !has[i] {
					want = append(want, text+elsewhere)
				}
			}
			t.Run(fmt.Sprintf("%v split %t", has, split), func(t *testing.T) {
				_, got := dataplane.ParseConflist([]byte(chain(entries...)))
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		}
	}
}

func TestConflist(t *testing.T) {
	text := `{"name": "uplink", "cniVersion": "1.0.0", "plugins": [
		{"type": "ipvlan", "master": "eth1", "mode": "l3", "mtu": 1500, "ipam": {"type": "static"}, "capabilities": {"ips": true}},
		{"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}, "capabilities": {"mac": true}}]}`
	got, problems := dataplane.ParseConflist([]byte(text))
	want := dataplane.Conflist{
		Name: "uplink", Version: "1.0.0", Master: "eth1", MTU: 1500, Plugins: []string{"ipvlan", "static", "tuning"},
		Text: `{"cniVersion":"1.0.0","name":"uplink","plugins":[{"capabilities":{"ips":true},"ipam":{"type":"static"},"master":"eth1","mode":"l3","mtu":1500,"type":"ipvlan"},` +
			`{"capabilities":{"mac":true},"sysctl":{"net.core.somaxconn":"500"},"type":"tuning"}]}`,
	}
	if diff := cmp.Diff(want, got); diff != "" || len(problems) > 0 {
		t.Errorf("problems %q, -want +got:\n%s", problems, diff)
	}
	again, problems := dataplane.ParseConflist([]byte(got.Text))
	if diff := cmp.Diff(want, again); diff != "" || len(problems) > 0 {
		t.Errorf("again: problems %q, -want +got:\n%s", problems, diff)
	}
}

func TestConflistProblems(t *testing.T) {
	good := plugin(true, true, true, true)
	with := func(old, new string) string { return chain(strings.Replace(good, old, new, 1)) }
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", []string{"is no CNI conflist: empty; must be one JSON object with cniVersion, name and plugins"}},
		{"no JSON", "{", []string{"is no CNI conflist: unexpected EOF; must be one JSON object with cniVersion, name and plugins"}},
		{"a list", "[]", []string{"is no CNI conflist: a list, not an object; must be one JSON object with cniVersion, name and plugins"}},
		{"two", chain(good) + "{}", []string{fmt.Sprintf("is no CNI conflist: at byte %d: something follows the object; must be one JSON object with cniVersion, name and plugins", len(chain(good))+1)}},
		{"not UTF-8", "{\"a\": \"\xff\"}", []string{"is no CNI conflist: not UTF-8; must be one JSON object with cniVersion, name and plugins"}},
		{"too long", strings.Repeat(" ", 70000), []string{"is no CNI conflist: longer than 65536 bytes; must be one JSON object with cniVersion, name and plugins"}},
		{"nothing", "{}", []string{
			"cniVersion is missing; must be one of 0.4.0, 1.0.0, 1.1.0, which have CHECK",
			"name is missing; must be 1 to 63 letters, digits, '.', '-' and '_', the first a letter or a digit",
			"plugins is missing; must be a list that begins with the plugin ipvlan",
		}},
		{"too old", strings.Replace(chain(good), "1.0.0", "0.3.1", 1), []string{`cniVersion is "0.3.1"; must be one of 0.4.0, 1.0.0, 1.1.0, which have CHECK`}},
		{"a single config", `{"cniVersion":"1.0.0","name":"x","type":"ipvlan"}`, []string{"plugins is missing; must be a list that begins with the plugin ipvlan"}},
		{"no entries", chain(), []string{"plugins is a list; must be a list that begins with the plugin ipvlan"}},
		{"an entry that is none", chain(good, "1"), []string{"plugins[1] is 1; must be an object with a type"}},
		{"disableCheck", strings.Replace(chain(good), `"name"`, `"disableCheck":true,"name"`, 1), []string{"disableCheck is true; leave it out: CHECK is how drift is found"}},
		{"disableCheck as text", strings.Replace(chain(good), `"name"`, `"disableCheck":"true","name"`, 1), []string{`disableCheck is "true"; leave it out: CHECK is how drift is found`}},
		{"no master", with(`"master":"eth1",`, ""), []string{"plugins[0].master is missing; must name the link to sit on, such as eth1"}},
		{"a master that is none", with("eth1", "eth 1"), []string{`plugins[0].master is "eth 1"; must name the link to sit on, such as eth1`}},
		{"an MTU that is none", with(`"mode"`, `"mtu":1e9,"mode"`), []string{"plugins[0].mtu is 1e9; must be a number from 0 to 65535"}},
		{"mode l2", with("l3", "l2"), []string{`plugins[0].mode is "l2"; must be "l3" in the same entry as the rest`}},
		{"another IPAM", with("static", "dhcp"), []string{`plugins[0].ipam.type is "dhcp"; must be "static" in the same entry as the rest`}},
		{"ips false", with("true", "false"), []string{"plugins[0].capabilities.ips is false; must be true in the same entry as the rest"}},
		{"ips as text", with("true", `"true"`), []string{`plugins[0].capabilities.ips is "true"; must be true in the same entry as the rest`}},
		{"spelling", with(`"mode"`, `"Mode"`), []string{"plugins[0].Mode must be spelled mode", `plugins[0].mode is missing; must be "l3" in the same entry as the rest`}},
		{"addresses", with(`"type":"static"`, `"addresses":[{"address":"192.0.2.1/32"}],"type":"static"`), []string{"plugins[0].ipam.addresses is a list; leave it out: addresses come from the endpoint's own `address`"}},
		{"routes", with(`"type":"static"`, `"routes":[{"dst":"0.0.0.0/0"}],"type":"static"`), []string{"plugins[0].ipam.routes is a list; leave it out: the old and the new attachment stand side by side, and a route can be only on one"}},
		{"ips", with(`"mode"`, `"ips":["192.0.2.1/32"],"mode"`), []string{"plugins[0].ips is a list; leave it out: addresses come from the endpoint's own `address`"}},
		{"runtimeConfig", with(`"mode"`, `"runtimeConfig":{"ips":["192.0.2.1/32"]},"mode"`), []string{"plugins[0].runtimeConfig is an object; leave it out: addresses come from the endpoint's own `address`"}},
		{"args", with(`"mode"`, `"args":{"cni":{"ips":["192.0.2.1/32"]}},"mode"`), []string{"plugins[0].args.cni.ips is a list; leave it out: addresses come from the endpoint's own `address`"}},
		{"prevResult", with(`"mode"`, `"prevResult":{},"mode"`), []string{"plugins[0].prevResult is an object; leave it out: addresses come from the endpoint's own `address`"}},
		{"SRv6", with(`"mode"`, `"srv6":{"locator":"fc00::/48"},"mode"`), []string{"plugins[0].srv6 is an object; leave it out: SRv6 is not supported over a CNI attachment, which carries VXLAN alone"}},
		{"SRv6 of all", strings.Replace(chain(good), `"name"`, `"srv6":true,"name"`, 1), []string{"srv6 is true; leave it out: SRv6 is not supported over a CNI attachment, which carries VXLAN alone"}},
		{"a path for a plugin", chain(good, `{"type":"../sh"}`), []string{`plugins[1].type is "../sh"; must be the name of a plugin's binary`}},
		{"ipvlan behind", chain(`{"type":"tuning"}`, good), []string{
			"plugins[1] is ipvlan; must be the first of the chain, and the only one: it makes the link that the others work on",
			`plugins[0].type is "tuning"; must be "ipvlan" in the same entry as the rest; that of plugins[1] doesn't count`,
			`plugins[0].mode is missing; must be "l3" in the same entry as the rest; that of plugins[1] doesn't count`,
			`plugins[0].ipam.type is missing; must be "static" in the same entry as the rest; that of plugins[1] doesn't count`,
			"plugins[0].capabilities.ips is missing; must be true in the same entry as the rest; that of plugins[1] doesn't count",
		}},
		{"IPAM that is none", with(`{"type":"static"}`, "7"), []string{"plugins[0].ipam is 7; must be an object with type: static", `plugins[0].ipam.type is missing; must be "static" in the same entry as the rest`}},
		{"capabilities that are none", with(`{"ips":true}`, "[]"), []string{"plugins[0].capabilities is a list; must be an object with ips: true", "plugins[0].capabilities.ips is missing; must be true in the same entry as the rest"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, problems := dataplane.ParseConflist([]byte(c.text))
			if diff := cmp.Diff(c.want, problems); diff != "" || got.Text != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// FuzzConflist: no input breaks the parser; what it accepts, it accepts in its own words as well, with the same meaning, and
// a plain JSON parser finds the four conditions in it.
func FuzzConflist(f *testing.F) {
	f.Add([]byte(chain(plugin(true, true, true, true))))
	f.Add([]byte(chain(plugin(true, true, true, true), plugin(false, false, false, true))))
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"ipvlan","Mode":"l3","ipam":{"type":"static","addresses":[]},"capabilities":{"ips":true}}]}`))
	f.Add([]byte(`{"plugins":[[],null,{"ipam":1e999}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, problems := dataplane.ParseConflist(data)
		if len(problems) > 0 {
			for _, p := range problems {
				if p == "" || strings.ContainsAny(p, "\n\r") {
					t.Errorf("a problem that is no line: %q", p)
				}
			}
			return
		}
		again, problems := dataplane.ParseConflist([]byte(c.Text))
		if len(problems) > 0 || again.Text != c.Text || again.Master != c.Master || !slices.Equal(again.Plugins, c.Plugins) {
			t.Fatalf("%+v reads again as %+v: %q", c, again, problems)
		}
		var plain struct {
			Plugins []struct {
				Type, Mode, Master string
				IPAM               struct{ Type string }
				Capabilities       map[string]any
			}
		}
		if err := json.Unmarshal([]byte(c.Text), &plain); err != nil {
			t.Fatalf("%s: %v", c.Text, err)
		}
		p := plain.Plugins[0]
		if p.Type != "ipvlan" || p.Mode != "l3" || p.IPAM.Type != "static" || p.Capabilities["ips"] != true || p.Master != c.Master {
			t.Fatalf("accepted: %s", c.Text)
		}
	})
}
